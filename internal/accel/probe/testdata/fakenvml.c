// A libnvidia-ml.so.1 without GPUs, for tests: it answers the probe's calls from the file that MUSTER_FAKE_NVML names,
// lines of key=value. The structures are those of nvml.h (go-nvml v0.13.3-0).
//
//   count=8          GPUs
//   init=18          what nvmlInit_v2 returns
//   lost=3           this GPU's handle is refused with rc 15
//   dies=3           this GPU is lost when its memory is asked for
//   hang=nvmlX:3     this call, of this GPU (-1: of none), ignores SIGTERM and never returns
//   stuck=nvmlX:3    this call writes to the file that block= names: it never returns where that lies on a frozen file system
//   abort=nvmlX:5    this call calls abort()
//   print=bytes      nvmlInit_v2 writes that much to standard output and to standard error
//   links=18 down=4  NVLinks of each GPU; this one is inactive
//   ecc=2 gpu=1      uncorrected errors of that GPU; rows, pending, action, sram, dbe and apart (from GPU 0) belong to it too
//   crc=7            errors that its links make from one reading to the next; replays=2 the same of its PCIe link
//   bus=16           PCI bus of GPU 0; the others have those behind it
//   busy=97          per cent of the time in which each GPU computes
//   pid=4242         the first of the three compute processes of GPU 1
//   fabric=3         state of the fabric, of all GPUs
//
// It is compiled with -DNO_ROWS for a library that does not know nvmlDeviceGetRemappedRows.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_MAX 64
enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, PERMISSION = 4, SIZE = 7, LOST = 15 };

struct device { int i, read, replays; };
typedef struct { struct device *handle; } dev;
static struct device devices[N_MAX];

static char settings[4096];

static const char *setting(const char *key) {
	static char value[512];
	size_t n = strlen(key);
	for (char *p = settings; p && *p; p = strchr(p, '\n'), p = p ? p + 1 : 0) {
		if (strncmp(p, key, n) == 0 && p[n] == '=') {
			size_t len = strcspn(p + n + 1, "\n");
			if (len >= sizeof value) len = sizeof value - 1;
			memcpy(value, p + n + 1, len);
			value[len] = 0;
			return value;
		}
	}
	return 0;
}

static int number(const char *key, int otherwise) {
	const char *v = setting(key);
	return v ? atoi(v) : otherwise;
}

static int is(const char *key, const char *call, int gpu) {
	char want[128];
	const char *v = setting(key);
	snprintf(want, sizeof want, "%s:%d", call, gpu);
	return v && strcmp(v, want) == 0;
}

static void meet(const char *call, int gpu) {
	if (is("hang", call, gpu)) {
		signal(SIGTERM, SIG_IGN);
		for (;;) pause();
	}
	if (is("stuck", call, gpu)) {
		FILE *f = fopen(setting("block"), "a");
		fputs("x", f);
		fclose(f);
	}
	if (is("abort", call, gpu)) abort();
}

// The value of key for GPU gpu=, and 0 for the others.
static int of(dev d, const char *key) { return number("gpu", -1) == d.handle->i ? number(key, 0) : 0; }

#define CALL(d) meet(__func__, (d).handle->i)

int nvmlInit_v2(void) {
	const char *path = getenv("MUSTER_FAKE_NVML");
	FILE *f = path ? fopen(path, "r") : 0;
	if (f) {
		settings[fread(settings, 1, sizeof settings - 1, f)] = 0;
		fclose(f);
	}
	for (int i = 0; i < N_MAX; i++) devices[i].i = i;
	for (int n = number("print", 0); n > 0; n -= 32) {
		write(1, "{\"t\":\"done\"} from the library \n\n", 32);
		write(2, "a complaint from the library...\n", 32);
	}
	meet(__func__, -1);
	return number("init", OK);
}

int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int rc) { (void)rc; return "?"; }
int nvmlSystemGetDriverVersion(char *to, unsigned n) { snprintf(to, n, "550.54.15"); return OK; }
int nvmlSystemGetNVMLVersion(char *to, unsigned n) { snprintf(to, n, "12.550.54.15"); return OK; }
int nvmlSystemGetCudaDriverVersion(int *to) { *to = 12040; return OK; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = number("count", 8); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned i, dev *d) {
	meet(__func__, i);
	if ((int)i == number("lost", -1)) return LOST;
	d->handle = &devices[i];
	return OK;
}

int nvmlDeviceGetUUID(dev d, char *to, unsigned n) { snprintf(to, n, "GPU-00000000-0000-0000-0000-%012d", d.handle->i); return OK; }
int nvmlDeviceGetName(dev d, char *to, unsigned n) { (void)d; snprintf(to, n, "NVIDIA H100 80GB HBM3"); return OK; }
int nvmlDeviceGetMinorNumber(dev d, unsigned *to) { *to = d.handle->i; return OK; }

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

int nvmlDeviceGetPciInfo_v3(dev d, struct pci *p) {
	memset(p, 0, sizeof *p);
	snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", number("bus", 0x1b) + d.handle->i);
	return OK;
}

struct memory { unsigned long long total, free, used; };

int nvmlDeviceGetMemoryInfo(dev d, struct memory *m) {
	CALL(d);
	if (d.handle->i == number("dies", -1)) return LOST;
	m->total = 85520809984ULL;
	m->used = 1048576;
	m->free = m->total - m->used;
	return OK;
}

struct rates { unsigned gpu, memory; };

int nvmlDeviceGetUtilizationRates(dev d, struct rates *to) {
	CALL(d);
	to->gpu = number("busy", 0);
	to->memory = 0;
	return OK;
}

int nvmlDeviceGetMigMode(dev d, unsigned *now, unsigned *next) { (void)d; *now = *next = 0; return OK; }
int nvmlDeviceGetPersistenceMode(dev d, unsigned *to) { (void)d; *to = 1; return OK; }
int nvmlDeviceGetComputeMode(dev d, unsigned *to) { (void)d; *to = 0; return OK; }
int nvmlDeviceGetEccMode(dev d, unsigned *now, unsigned *next) { (void)d; *now = *next = 1; return OK; }
int nvmlDeviceGetTotalEccErrors(dev d, unsigned kind, unsigned since, unsigned long long *to) {
	if (kind != 1) return INVALID;
	*to = of(d, "ecc") * (since ? 3 : 1);
	return OK;
}
#ifndef NO_ROWS
int nvmlDeviceGetRemappedRows(dev d, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failed) {
	*corr = 0;
	*unc = of(d, "rows");
	*pending = of(d, "pending");
	*failed = 0;
	return OK;
}
#endif
struct sram { unsigned version; unsigned long long counts[11]; unsigned over; };

int nvmlDeviceGetSramEccErrorStatus(dev d, struct sram *to) {
	if (to->version != (sizeof *to | 1 << 24)) return 25;
	to->over = of(d, "sram");
	return OK;
}

int nvmlDeviceGetRetiredPages(dev d, int cause, unsigned *n, unsigned long long *to) {
	unsigned room = *n;
	*n = cause ? of(d, "dbe") : 0;
	return room < *n ? SIZE : OK;
}

int nvmlDeviceGetRetiredPagesPendingStatus(dev d, unsigned *to) { (void)d; (void)to; return UNSUPPORTED; }

struct field { unsigned id, scope; long long at, latency; unsigned type, rc; union { unsigned u; unsigned long long ull; } v; };

int nvmlDeviceGetFieldValues(dev d, int n, struct field *f) {
	for (; n > 0; n--, f++) {
		f->type = 1;
		f->rc = OK;
		if (f->id == 91) f->v.u = number("links", 18);
		else if (f->id == 230) f->v.u = of(d, "action");
		else if (f->id == 82) f->v.u = 51;
		else if (f->id == 38) f->v.u = of(d, "crc") * ++d.handle->read;
		else if (f->id == 52 || f->id == 59) f->v.u = 0;
		else f->rc = UNSUPPORTED;
	}
	return OK;
}

int nvmlDeviceGetNvLinkState(dev d, unsigned link, unsigned *to) {
	if ((int)link >= number("links", 18)) return INVALID;
	*to = !(of(d, "down") && (int)link == of(d, "down"));
	return OK;
}

int nvmlDeviceGetCurrPcieLinkWidth(dev d, unsigned *to) { (void)d; *to = 16; return OK; }
int nvmlDeviceGetMaxPcieLinkWidth(dev d, unsigned *to) { (void)d; *to = 16; return OK; }
int nvmlDeviceGetCurrPcieLinkGeneration(dev d, unsigned *to) { (void)d; *to = 1; return OK; }
int nvmlDeviceGetMaxPcieLinkGeneration(dev d, unsigned *to) { (void)d; *to = 5; return OK; }
// The name before r535; the newer one is missing here.
int nvmlDeviceGetCurrentClocksThrottleReasons(dev d, unsigned long long *to) { (void)d; *to = 1; return OK; }
int nvmlDeviceGetTemperature(dev d, unsigned sensor, unsigned *to) { (void)d; (void)sensor; *to = 34; return OK; }

int nvmlDeviceGetTemperatureThreshold(dev d, unsigned kind, unsigned *to) {
	(void)d;
	*to = kind == 1 ? 87 : 95;
	return kind == 1 || kind == 2 ? OK : UNSUPPORTED;
}
int nvmlDeviceGetPowerUsage(dev d, unsigned *to) { (void)d; *to = 71234; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(dev d, unsigned *to) { (void)d; *to = 700000; return OK; }
int nvmlDeviceGetClockInfo(dev d, unsigned kind, unsigned *to) { (void)d; *to = kind == 1 ? 345 : 2619; return OK; }
int nvmlDeviceGetPcieReplayCounter(dev d, unsigned *to) { *to = of(d, "replays") * ++d.handle->replays; return OK; }
int nvmlDeviceGetP2PStatus(dev a, dev b, int kind, int *to) {
	if (kind != 2) return INVALID;
	*to = of(a, "apart") && b.handle->i == 0 ? 5 : 0;
	return OK;
}

struct fabric { unsigned version; unsigned char uuid[16]; unsigned status, clique; unsigned char state; unsigned health; };

int nvmlDeviceGetGpuFabricInfoV(dev d, struct fabric *to) {
	(void)d;
	if (to->version != (sizeof *to | 2 << 24)) return 25;
	to->state = number("fabric", 0);
	return OK;
}

struct process { unsigned pid; unsigned long long mem; unsigned gi, ci; };

int nvmlDeviceGetComputeRunningProcesses_v3(dev d, unsigned *n, struct process *p) {
	unsigned room = *n;
	if (d.handle->i == 2) return PERMISSION;
	*n = d.handle->i == 1 ? 3 : 0;
	if (room < *n) return SIZE;
	for (unsigned i = 0; i < *n; i++) p[i] = (struct process){number("pid", 4242) + i, i ? ~0ULL : 4096, ~0u, ~0u};
	return OK;
}
