// SPDX-License-Identifier: GPL-2.0-only
/*
 * neotier-bpf: watches what the neotier module does, through its tracepoints: a log2 histogram of the time from a page's
 * report to its promotion, and the reports that moved nothing, or had to wait, by reason. Observes only; the module keeps its own totals in sysfs, with or without
 * this tool. One thread; maps are only read, so that every number is a difference of two readings and several instances
 * can run side by side.
 *
 * The module cannot be unloaded while the tool is attached to it.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "../include/neotier/standard_output.h"
#include "../policies/promotion/skip.h"
#include "neotier_bpf.h"
#include "neotier_bpf.skel.h"

#define MODULE "neotier"
#define MODULE_DIR "/sys/module/" MODULE
#define MODULE_BTF "/sys/kernel/btf/" MODULE
#define KERNEL_BTF "/sys/kernel/btf/vmlinux"
#define REASON_NAME(NAME, name, text) #name,
#define BAR_WIDTH 40

_Static_assert(NR_NEOTIER_SKIP <= NEOTIER_BPF_REASONS, "a slot for each reason");

static struct env {
	double interval_s;
	long count; /* reports; 0: until a signal */
	bool json;
	bool verbose;
} env = { .interval_s = 5 };

/* Totals since the tool attached. */
struct reading {
	double at_s;
	struct neotier_bpf_latency latency;
	struct neotier_bpf_skips skips;
	__u64 missed;	/* handlers the kernel did not nest */
};

static char libbpf_complaint[400];
static volatile sig_atomic_t stop;

static const char help[] =
	"usage: neotier-bpf [--interval S] [--count N] [--json]\n"
	"\n"
	"Shows how long the neotier module takes from a page's report to its promotion (a histogram by powers of two, in\n"
	"ns), and how often it left a page where it is or let it wait, by reason (docs/abi says what each means). Each\n"
	"output covers the time since the one before; after several, a total follows. Ctrl-C ends it with a last one.\n"
	"\n"
	"  -i, --interval S   seconds between outputs, 0.01 to 86400 (default 5)\n"
	"  -n, --count N      end after N outputs (default: run until Ctrl-C)\n"
	"  -j, --json         one JSON object per output and line; \"kind\" is \"interval\" or \"total\"\n"
	"  -v, --verbose      show what libbpf has to say\n"
	"  -h, --help         this text\n"
	"\n"
	"\"lost\" counts events that are in no other number: missed (the kernel does not nest a handler in itself) and unknown\n"
	"(a skip reason this tool has no room for). The module cannot be unloaded while this runs.\n"
	"\n"
	"examples:\n"
	"  neotier-bpf                        # an output every 5 s\n"
	"  neotier-bpf -i 1 -n 10             # ten seconds, then the total\n"
	"  neotier-bpf -j -i 60 >> tiering.json\n"
	"\n"
	"exit status: 0 done, 1 cannot watch, 2 wrong usage\n";

static void on_signal(int signal)
{
	(void)signal;
	stop = 1;
}

static int on_libbpf(enum libbpf_print_level level, const char *format, va_list args)
{
	va_list copy;

	if (env.verbose) {
		va_copy(copy, args);
		vfprintf(stderr, format, copy);
		va_end(copy);
	}
	/* The first warning names the cause; those after it what followed from it. */
	if (level == LIBBPF_WARN && !libbpf_complaint[0]) {
		vsnprintf(libbpf_complaint, sizeof(libbpf_complaint), format, args);
		libbpf_complaint[strcspn(libbpf_complaint, "\n")] = '\0';
	}
	return 0;
}

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* 0, or the exit status plus one: help ends well, too. */
static int parse(int argc, char **argv)
{
	static const struct option options[] = {
		{ "interval", required_argument, NULL, 'i' }, { "count", required_argument, NULL, 'n' },
		{ "json", no_argument, NULL, 'j' },	      { "verbose", no_argument, NULL, 'v' },
		{ "help", no_argument, NULL, 'h' },	      { NULL, 0, NULL, 0 },
	};
	char *end;
	int c;

	while ((c = getopt_long(argc, argv, "i:n:jvh", options, NULL)) != -1) {
		switch (c) {
		case 'i':
			env.interval_s = strtod(optarg, &end);
			if (end == optarg || *end || !(env.interval_s >= 0.01 && env.interval_s <= 86400)) {
				fprintf(stderr, "neotier-bpf: --interval '%s' is not a number of seconds from 0.01 to 86400\n",
					optarg);
				return 3;
			}
			break;
		case 'n':
			errno = 0;
			env.count = strtol(optarg, &end, 10);
			if (end == optarg || *end || errno || env.count < 1) {
				fprintf(stderr, "neotier-bpf: --count '%s' is not a number of outputs, 1 or more\n", optarg);
				return 3;
			}
			break;
		case 'j':
			env.json = true;
			break;
		case 'v':
			env.verbose = true;
			break;
		case 'h':
			fputs(help, stdout);
			return 1;
		default:
			fprintf(stderr, "neotier-bpf: see neotier-bpf --help\n");
			return 3;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "neotier-bpf: unexpected '%s'; see neotier-bpf --help\n", argv[optind]);
		return 3;
	}
	return 0;
}

static const char *reason_name(unsigned int reason)
{
	static const char *const names[] = { NEOTIER_SKIPS(REASON_NAME) };
	static char number[24];

	if (reason < sizeof(names) / sizeof(names[0]))
		return names[reason];
	snprintf(number, sizeof(number), "reason_%u", reason);
	return number;
}

static int read_missed(struct bpf_program *program, __u64 *missed)
{
	struct bpf_prog_info info = { 0 };
	__u32 size = sizeof(info);
	int fd = bpf_program__fd(program);

	if (fd < 0)
		return 0;
	if (bpf_obj_get_info_by_fd(fd, &info, &size))
		return -errno;
	*missed += info.recursion_misses;
	return 0;
}

static int read_maps(struct neotier_bpf_bpf *skel, int cpus, void *buffer, struct reading *r)
{
	const struct neotier_bpf_latency *latency = buffer;
	const struct neotier_bpf_skips *skips = buffer;
	struct bpf_program *program;
	__u32 key = 0;
	int cpu, i, err;

	memset(r, 0, sizeof(*r));
	r->at_s = now_s();
	if (bpf_map_lookup_elem(bpf_map__fd(skel->maps.latency), &key, buffer))
		return -errno;
	for (cpu = 0; cpu < cpus; cpu++, latency++) {
		for (i = 0; i < NEOTIER_BPF_SLOTS; i++)
			r->latency.slots[i] += latency->slots[i];
		r->latency.count += latency->count;
		r->latency.sum_ns += latency->sum_ns;
		if (latency->max_ns > r->latency.max_ns)
			r->latency.max_ns = latency->max_ns;
	}
	if (bpf_map_lookup_elem(bpf_map__fd(skel->maps.skips), &key, buffer))
		return -errno;
	for (cpu = 0; cpu < cpus; cpu++, skips++) {
		for (i = 0; i < NEOTIER_BPF_REASONS; i++)
			r->skips.reasons[i] += skips->reasons[i];
		r->skips.unknown += skips->unknown;
	}
	bpf_object__for_each_program(program, skel->obj) {
		err = read_missed(program, &r->missed);
		if (err)
			return err;
	}
	return 0;
}

/* max_ns stays the greatest since the start: a maximum of an interval cannot be had from two totals. */
static struct reading difference(const struct reading *from, const struct reading *to)
{
	struct reading d = *to;
	int i;

	for (i = 0; i < NEOTIER_BPF_SLOTS; i++)
		d.latency.slots[i] -= from->latency.slots[i];
	for (i = 0; i < NEOTIER_BPF_REASONS; i++)
		d.skips.reasons[i] -= from->skips.reasons[i];
	d.latency.count -= from->latency.count;
	d.latency.sum_ns -= from->latency.sum_ns;
	d.skips.unknown -= from->skips.unknown;
	d.missed -= from->missed;
	return d;
}

static __u64 slot_low(int slot)
{
	return slot ? 1ULL << slot : 0;
}

static __u64 skipped(const struct reading *r)
{
	__u64 n = 0;
	int i;

	for (i = 0; i < NEOTIER_BPF_REASONS; i++)
		n += r->skips.reasons[i];
	return n;
}

static void print_json(const char *kind, double from_s, double to_s, const struct reading *r)
{
	const char *comma = "";
	int i;

	printf("{\"kind\":\"%s\",\"from_s\":%.3f,\"to_s\":%.3f,\"promoted\":%llu,\"latency_ns\":{\"sum\":%llu"
	       ",\"max_since_start\":%llu,\"histogram\":[",
	       kind, from_s, to_s, r->latency.count, r->latency.sum_ns, r->latency.max_ns);
	for (i = 0; i < NEOTIER_BPF_SLOTS; i++) {
		if (!r->latency.slots[i])
			continue;
		printf("%s{\"from\":%llu,\"count\":%llu}", comma, slot_low(i), r->latency.slots[i]);
		comma = ",";
	}
	printf("]},\"skipped\":%llu,\"skipped_by_reason\":{", skipped(r));
	comma = "";
	for (i = 0; i < NEOTIER_BPF_REASONS; i++) {
		if (!r->skips.reasons[i])
			continue;
		printf("%s\"%s\":%llu", comma, reason_name(i), r->skips.reasons[i]);
		comma = ",";
	}
	printf("},\"lost\":{\"missed\":%llu,\"unknown\":%llu}}\n", r->missed, r->skips.unknown);
}

static void print_histogram(const struct neotier_bpf_latency *l)
{
	__u64 most = 0;
	int first = -1, last = -1, i, bar;

	for (i = 0; i < NEOTIER_BPF_SLOTS; i++) {
		if (!l->slots[i])
			continue;
		if (first < 0)
			first = i;
		last = i;
		if (l->slots[i] > most)
			most = l->slots[i];
	}
	if (first < 0)
		return;
	printf("  %13s %13s  %10s\n", "from ns", "below ns", "pages");
	for (i = first; i <= last; i++) {
		bar = (int)(l->slots[i] * BAR_WIDTH / most);
		printf("  %13llu ", slot_low(i));
		if (i < NEOTIER_BPF_SLOTS - 1)
			printf("%13llu", slot_low(i + 1));
		else
			printf("%13s", "");
		printf("  %10llu |%.*s%*s|\n", l->slots[i], bar, "****************************************",
		       BAR_WIDTH - bar, "");
	}
}

static void print_text(const char *kind, double from_s, double to_s, const struct reading *r)
{
	int i;

	printf("%s %.3f to %.3f s\n", kind, from_s, to_s);
	printf("promoted %llu", r->latency.count);
	if (r->latency.count)
		printf(", mean %.0f ns, longest since start %llu ns",
		       (double)r->latency.sum_ns / (double)r->latency.count, r->latency.max_ns);
	putchar('\n');
	print_histogram(&r->latency);
	printf("skipped %llu\n", skipped(r));
	for (i = 0; i < NEOTIER_BPF_REASONS; i++)
		if (r->skips.reasons[i])
			printf("  %-27s  %10llu\n", reason_name(i), r->skips.reasons[i]);
	printf("lost: missed %llu, unknown %llu\n\n", r->missed, r->skips.unknown);
}

/* False when standard output is gone, as when a pager was closed. */
static bool report(const char *kind, double start_s, double from_s, const struct reading *r)
{
	if (env.json)
		print_json(kind, from_s - start_s, r->at_s - start_s, r);
	else
		print_text(kind, from_s - start_s, r->at_s - start_s, r);
	return fflush(stdout) == 0;
}

static void sleep_until(double at_s)
{
	struct timespec t = { .tv_sec = (time_t)at_s };

	t.tv_nsec = (long)((at_s - (double)t.tv_sec) * 1e9);
	while (!stop && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static int watch(struct neotier_bpf_bpf *skel)
{
	struct reading first, before, now, delta;
	int cpus = libbpf_num_possible_cpus();
	long reports = 0;
	double next_s;
	void *buffer;
	int err;

	/* Both structures are multiples of 8 bytes, the kernel's rounding of per-CPU values. */
	buffer = cpus > 0 ? calloc((size_t)cpus, sizeof(struct neotier_bpf_latency)) : NULL;
	if (!buffer) {
		fprintf(stderr, "neotier-bpf: no memory for the counts of %d CPUs\n", cpus);
		return 1;
	}
	err = read_maps(skel, cpus, buffer, &first);
	before = first;
	next_s = first.at_s;
	while (!err && !stop && (!env.count || reports < env.count)) {
		next_s += env.interval_s;
		sleep_until(next_s);
		err = read_maps(skel, cpus, buffer, &now);
		if (err)
			break;
		delta = difference(&before, &now);
		if (!report("interval", first.at_s, before.at_s, &delta)) {
			err = 1;
			break;
		}
		before = now;
		reports++;
	}
	free(buffer);
	if (err < 0)
		fprintf(stderr, "neotier-bpf: reading the counts: %s\n", strerror(-err));
	if (err)
		return 1;
	if (reports > 1) {
		delta = difference(&first, &before);
		if (!report("total", first.at_s, first.at_s, &delta))
			return 1;
	}
	return 0;
}

static int fail_to(const char *step, int err)
{
	if (err == -EPERM)
		fprintf(stderr, "neotier-bpf: cannot %s: needs root, or CAP_BPF and CAP_PERFMON\n", step);
	else if (err == -ENOENT || err == -ESRCH)
		fprintf(stderr, "neotier-bpf: cannot %s: not found in the module; is neotier.ko of the same version?\n", step);
	else
		fprintf(stderr, "neotier-bpf: cannot %s: %s (%s; --verbose shows all)\n", step, strerror(-err),
			libbpf_complaint);
	return 1;
}

static int run(int argc, char **argv)
{
	LIBBPF_OPTS(bpf_object_open_opts, open_opts);
	struct sigaction action = { .sa_handler = on_signal };
	struct neotier_bpf_bpf *skel;
	bool typed;
	int err;

	err = parse(argc, argv);
	if (err)
		return err - 1;
	libbpf_set_print(on_libbpf);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	/* A closed pipe is seen when writing; without this the tool would die between load and clean-up. */
	signal(SIGPIPE, SIG_IGN);

	if (access(MODULE_DIR, F_OK)) {
		fprintf(stderr, "neotier-bpf: the module is not loaded (no " MODULE_DIR "): modprobe neotier, or insmod neotier.ko\n");
		return 1;
	}
	typed = access(KERNEL_BTF, R_OK) == 0 && access(MODULE_BTF, R_OK) == 0;
	if (!typed)
		fprintf(stderr, "neotier-bpf: no BTF of the module (" MODULE_BTF "): raw tracepoints instead, their arguments unchecked\n");

	skel = neotier_bpf_bpf__open_opts(&open_opts);
	if (!skel)
		return fail_to("open the BPF object", -errno);
	bpf_program__set_autoload(skel->progs.promote_btf, typed);
	bpf_program__set_autoload(skel->progs.skip_btf, typed);
	bpf_program__set_autoload(skel->progs.promote_raw, !typed);
	bpf_program__set_autoload(skel->progs.skip_raw, !typed);
	err = neotier_bpf_bpf__load(skel);
	if (err) {
		err = fail_to("load the BPF programs", err);
		goto out;
	}
	err = neotier_bpf_bpf__attach(skel);
	if (err) {
		err = fail_to("attach to the module's tracepoints", err);
		goto out;
	}
	err = watch(skel);
out:
	neotier_bpf_bpf__destroy(skel);
	return err;
}

int main(int argc, char **argv)
{
	neotier_open_standard_streams();
	return neotier_finish_output("neotier-bpf", run(argc, argv));
}
