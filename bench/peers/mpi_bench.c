/* One launch of the MPI side of `python -m bench.peers`: what tidegate_bench_node does, by an MPI
 * library. Arguments: LOOPS WARMUPS SIZES OPERATIONS, the last two lists with commas.
 *
 * Prints a line for each cell and place: operation, bytes asked for, whether in place, calls in a
 * loop, wrong elements, and the microseconds of a call in each loop. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ALIGNMENT = 64, ROOT = 0 };

/* A loop is cut down to this, for libraries that spin where ranks outnumber cores. */
static const double LONGEST_LOOP_US = 50e3;

struct cell {
  const char* operation;
  size_t bytes; /* Of all blocks together, or of the tensor. */
  int in_place;
};

static int rank, ranks;
static float *source, *target; /* Of cell.bytes each. */

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static int is(const struct cell* cell, const char* operation) {
  return strcmp(cell->operation, operation) == 0;
}

static float value(int of_rank, size_t index) {
  return (float)((index + 31 * (size_t)of_rank) % 97);
}

static void fill(const struct cell* cell) {
  const size_t whole = cell->bytes / sizeof(float), part = whole / (size_t)ranks;
  memset(target, 0xff, cell->bytes);
  for (size_t i = 0; i < whole; ++i) source[i] = value(rank, i);
  if (!cell->in_place) return;
  if (is(cell, "all_gather"))
    for (size_t i = 0; i < part; ++i) target[(size_t)rank * part + i] = value(rank, i);
  if (is(cell, "all_reduce") || is(cell, "reduce_scatter")) memcpy(target, source, cell->bytes);
}

static void call(const struct cell* cell) {
  const size_t whole = cell->bytes / sizeof(float), part = whole / (size_t)ranks;
  const int all = (int)whole, one = (int)part;
  const MPI_Comm world = MPI_COMM_WORLD;
  const void* in = cell->in_place ? MPI_IN_PLACE : source;
  if (is(cell, "all_gather"))
    MPI_Allgather(in, one, MPI_FLOAT, target, one, MPI_FLOAT, world);
  else if (is(cell, "reduce_scatter"))
    MPI_Reduce_scatter_block(in, target, one, MPI_FLOAT, MPI_SUM, world);
  else if (is(cell, "all_reduce"))
    MPI_Allreduce(in, target, all, MPI_FLOAT, MPI_SUM, world);
  else if (is(cell, "broadcast"))
    MPI_Bcast(rank == ROOT ? source : target, all, MPI_FLOAT, ROOT, world);
  else if (is(cell, "all_to_all"))
    MPI_Alltoall(source, one, MPI_FLOAT, target, one, MPI_FLOAT, world);
  else if (is(cell, "gather"))
    MPI_Gather(source, one, MPI_FLOAT, target, one, MPI_FLOAT, ROOT, world);
  else if (is(cell, "scatter"))
    MPI_Scatter(source, one, MPI_FLOAT, target, one, MPI_FLOAT, ROOT, world);
  else
    MPI_Barrier(world);
}

/* The elements that `call` should have left on this rank, and how many differ. */
static long count_wrong(const struct cell* cell) {
  const size_t whole = cell->bytes / sizeof(float), part = whole / (size_t)ranks;
  const size_t own = (size_t)rank * part;
  const float* found = target;
  size_t elements = whole;
  long wrong = 0;
  if (is(cell, "barrier") || (is(cell, "gather") && rank != ROOT)) elements = 0;
  if (is(cell, "reduce_scatter") || is(cell, "scatter")) elements = part;
  if (is(cell, "broadcast") && rank == ROOT) found = source;
  const int gathers = is(cell, "all_gather") || is(cell, "gather");
  const int exchanges = is(cell, "all_to_all"), scatters = is(cell, "scatter");
  const int broadcasts = is(cell, "broadcast");
  const size_t first = is(cell, "reduce_scatter") ? own : 0;
  for (size_t i = 0; i < elements; ++i) {
    float expected = 0;
    if (gathers)
      expected = value((int)(i / part), i % part);
    else if (exchanges)
      expected = value((int)(i / part), own + i % part);
    else if (scatters)
      expected = value(ROOT, own + i);
    else if (broadcasts)
      expected = value(ROOT, i);
    else
      for (int from = 0; from < ranks; ++from) expected += value(from, first + i);
    wrong += found[i] != expected;
  }
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  return wrong;
}

/* Microseconds of a call: from the first start to the last finish over the ranks. */
static double time_loop(const struct cell* cell, int warmups, int calls) {
  for (int i = 0; i < warmups; ++i) call(cell);
  MPI_Barrier(MPI_COMM_WORLD);
  double start = now_us();
  for (int i = 0; i < calls; ++i) call(cell);
  double finish = now_us();
  MPI_Allreduce(MPI_IN_PLACE, &start, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &finish, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return (finish - start) / calls;
}

static int calls_of(size_t bytes) {
  if (bytes <= 64 << 10) return 200;
  if (bytes <= 2 << 20) return 61;
  if (bytes <= 32 << 20) return 3;
  return 1;
}

static void run(const struct cell* cell, size_t asked, int loops, int warmups) {
  fill(cell);
  call(cell);
  const long wrong = count_wrong(cell);
  memset(source, 0, cell->bytes);
  memset(target, 0, cell->bytes);
  int calls = calls_of(cell->bytes);
  const double estimate = time_loop(cell, 1, 2);
  if (calls * estimate > LONGEST_LOOP_US)
    calls = estimate > LONGEST_LOOP_US ? 1 : (int)(LONGEST_LOOP_US / estimate);
  if (warmups > calls) warmups = calls;
  if (rank == ROOT)
    printf("cell %s %zu %d %d %ld", cell->operation, asked, cell->in_place, calls, wrong);
  for (int loop = 0; loop < loops; ++loop) {
    const double us = time_loop(cell, warmups, calls);
    if (rank == ROOT) printf(" %.4f", us);
  }
  if (rank == ROOT) {
    printf("\n");
    fflush(stdout);
  }
}

int main(int count, char** arguments) {
  MPI_Init(&count, &arguments);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (count != 5) {
    if (rank == ROOT) fprintf(stderr, "usage: mpi_bench LOOPS WARMUPS SIZES OPERATIONS\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const int loops = atoi(arguments[1]), warmups = atoi(arguments[2]);
  char* rest_operations = NULL;
  for (char* name = strtok_r(arguments[4], ",", &rest_operations); name != NULL;
       name = strtok_r(NULL, ",", &rest_operations)) {
    char* rest_sizes = NULL;
    char sizes[1024];
    snprintf(sizes, sizeof(sizes), "%s", strcmp(name, "barrier") == 0 ? "0" : arguments[3]);
    for (char* size = strtok_r(sizes, ",", &rest_sizes); size != NULL;
         size = strtok_r(NULL, ",", &rest_sizes)) {
      const size_t asked = strtoull(size, NULL, 10), unit = ALIGNMENT * (size_t)ranks;
      struct cell cell = {name, asked / unit * unit, 0};
      if (asked > 0 && cell.bytes == 0) cell.bytes = unit;
      source = aligned_alloc(ALIGNMENT, cell.bytes + ALIGNMENT);
      target = aligned_alloc(ALIGNMENT, cell.bytes + ALIGNMENT);
      if (source == NULL || target == NULL) {
        fprintf(stderr, "mpi_bench: no memory for two tensors of %zu bytes\n", cell.bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
      run(&cell, asked, loops, warmups);
      cell.in_place = 1;
      if (is(&cell, "all_gather") || is(&cell, "reduce_scatter") || is(&cell, "all_reduce"))
        run(&cell, asked, loops, warmups);
      free(source);
      free(target);
    }
  }
  MPI_Finalize();
  return 0;
}
