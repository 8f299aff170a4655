"""What `tidegate bench` is made of."""
