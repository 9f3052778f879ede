// A library that kernel_times.py injects into a CUDA program (CUDA_INJECTION64_PATH). It uses CUPTI to write one line
// per kernel or copy to $KERNEL_TRACE/PID.csv: start and duration in ns, grid size, name.
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BUFFER_BYTES (8 << 20)

static FILE* lines;

static void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = aligned_alloc(8, BUFFER_BYTES);
  *bytes = *buffer ? BUFFER_BYTES : 0;
  *most_records = 0;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t bytes, size_t used) {
  (void)context, (void)stream, (void)bytes;
  CUpti_Activity* record = NULL;
  while (cuptiActivityGetNextRecord(buffer, used, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const CUpti_ActivityKernel10* k = (const CUpti_ActivityKernel10*)record;
      fprintf(lines, "%llu,%llu,%d x %d x %d,%s\n", (unsigned long long)k->start, (unsigned long long)(k->end - k->start),
              k->gridX, k->gridY, k->gridZ, k->name);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const CUpti_ActivityMemcpy6* c = (const CUpti_ActivityMemcpy6*)record;
      fprintf(lines, "%llu,%llu,,copy of %llu bytes\n", (unsigned long long)c->start,
              (unsigned long long)(c->end - c->start), (unsigned long long)c->bytes);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const CUpti_ActivityMemset4* s = (const CUpti_ActivityMemset4*)record;
      fprintf(lines, "%llu,%llu,,memset of %llu bytes\n", (unsigned long long)s->start,
              (unsigned long long)(s->end - s->start), (unsigned long long)s->bytes);
    }
  }
  free(buffer);
}

static void finish(void) {
  cuptiActivityFlushAll(1);
  fclose(lines);
}

int InitializeInjection(void) {
  char path[4096];
  const char* folder = getenv("KERNEL_TRACE");
  snprintf(path, sizeof path, "%s/%d.csv", folder ? folder : ".", (int)getpid());
  lines = fopen(path, "w");
  if (!lines) return 0;
  cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
  atexit(finish);
  return 1;
}
