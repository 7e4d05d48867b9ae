/* A stand-in for NVIDIA's libnvidia-ml.so.1 with the few calls that the trainer makes: for tests on machines without a GPU.
 *
 * Build: cc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 nvml.c        Use: LD_LIBRARY_PATH=<its folder>
 *
 * Environment (all optional):
 *   MOCK_NVML_COUNT       number of GPUs, default 3
 *   MOCK_NVML_NO_POWER    index of a GPU that does not support reading its power, default 1; -1: none
 *   MOCK_NVML_LOST        index of a GPU that is lost, default 2; -1: none
 *   MOCK_NVML_LOST_FILE   the GPU is lost only once this file exists
 *   MOCK_NVML_XID         an XID that GPU 0 raises once, when it is first waited for; default none
 *   MOCK_NVML_ECC         uncorrected ECC errors of GPU 0, default 0; other GPUs do not support ECC
 *   The energy counter of a GPU rises by 2 J with each reading; a GPU without power has none.
 * GPU i: UUID GPU-0000000i-mock, utilization 90 - 10 i %, memory (i + 1) GiB of 80 GiB, 300 + i W, 60 + i degrees.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10, GPU_IS_LOST = 15, MAX_GPUS = 16 };

typedef struct { int index; } gpu;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { gpu *device; unsigned long long type, data; unsigned instance, compute; } event;
typedef struct { unsigned long long total, free, used; } memory;

static gpu gpus[MAX_GPUS];

static int setting(const char *name, int fallback) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : fallback;
}

static int count(void) {
    int wanted = setting("MOCK_NVML_COUNT", 3);
    return wanted < 0 ? 0 : wanted > MAX_GPUS ? MAX_GPUS : wanted;
}

static int lost(const gpu *device) {
    const char *file = getenv("MOCK_NVML_LOST_FILE");
    if (device->index != setting("MOCK_NVML_LOST", 2)) return 0;
    return !(file && *file) || access(file, F_OK) == 0;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "Success";
    case TIMEOUT: return "Timeout";
    case NOT_SUPPORTED: return "Not Supported";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Invalid Argument";
    }
}

int nvmlDeviceGetCount_v2(unsigned *result) { *result = (unsigned)count(); return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu **device) {
    if (index >= (unsigned)count()) return INVALID_ARGUMENT;
    gpus[index].index = (int)index;
    *device = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(const gpu *device, char *text, unsigned size) {
    snprintf(text, size, "GPU-%08d-mock", device->index); /* still known when the GPU is lost, as in the real driver */
    return SUCCESS;
}

int nvmlDeviceGetName(const gpu *device, char *text, unsigned size) {
    (void)device;
    snprintf(text, size, "NVIDIA Mock 80GB");
    return SUCCESS;
}

int nvmlDeviceGetMigMode(const gpu *device, unsigned *current, unsigned *pending) {
    (void)device, (void)current, (void)pending;
    return NOT_SUPPORTED;
}

int nvmlDeviceGetUtilizationRates(const gpu *device, utilization *rates) {
    if (lost(device)) return GPU_IS_LOST;
    rates->gpu = (unsigned)(90 - 10 * (device->index % 10));
    rates->memory = 10;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(const gpu *device, memory *info) {
    if (lost(device)) return GPU_IS_LOST;
    info->total = 80ULL << 30;
    info->used = (unsigned long long)(device->index + 1) << 30;
    info->free = info->total - info->used;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(const gpu *device, unsigned *milliwatts) {
    if (lost(device)) return GPU_IS_LOST;
    if (device->index == setting("MOCK_NVML_NO_POWER", 1)) return NOT_SUPPORTED;
    *milliwatts = 1000u * (300u + (unsigned)device->index);
    return SUCCESS;
}

int nvmlDeviceGetTemperature(const gpu *device, int sensor, unsigned *celsius) {
    if (lost(device)) return GPU_IS_LOST;
    if (sensor != 0) return INVALID_ARGUMENT;
    *celsius = 60u + (unsigned)device->index;
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(const gpu *device, unsigned long long *millijoules) {
    static unsigned long long readings[MAX_GPUS];
    if (lost(device)) return GPU_IS_LOST;
    if (device->index == setting("MOCK_NVML_NO_POWER", 1)) return NOT_SUPPORTED;
    *millijoules = 1000000 + 2000 * ++readings[device->index];
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(const gpu *device, int type, int counter, unsigned long long *count) {
    if (lost(device)) return GPU_IS_LOST;
    if (device->index != 0) return NOT_SUPPORTED;
    if (type != 1 || counter != 0) return INVALID_ARGUMENT;
    *count = (unsigned long long)setting("MOCK_NVML_ECC", 0);
    return SUCCESS;
}

/* The one set of events; its content is whether the XID was raised already. */
static int raised;

int nvmlEventSetCreate(int **set) { raised = 0; *set = &raised; return SUCCESS; }
int nvmlEventSetFree(int *set) { (void)set; return SUCCESS; }

int nvmlDeviceRegisterEvents(const gpu *device, unsigned long long types, int *set) {
    (void)types, (void)set;
    return device->index == 0 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlEventSetWait_v2(int *set, event *raises, unsigned milliseconds) {
    int xid = setting("MOCK_NVML_XID", 0);
    if (!xid || *set) {
        usleep(1000 * (milliseconds < 10 ? milliseconds : 10));
        return TIMEOUT;
    }
    *set = 1;
    *raises = (event){ .device = &gpus[0], .type = 8, .data = (unsigned long long)xid };
    return SUCCESS;
}
