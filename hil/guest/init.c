/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Process 1 of the guest: sets the machine up as /neotier.conf says, runs PROGRAM in the region of interest, and leaves
 * the outcome in the BAR's mailbox. Statically linked; the guest has nothing else.
 *
 * Run by hand inside the guest (not as process 1): /init region GRANULARITY makes the CXL region once more.
 *
 * /neotier.conf: "key value" lines, in this order of effect:
 *   cxl_module PATH, cxl_devices N, cxl_granularity BYTES
 *                       machine `cxl`: load these, make one region of N devices
 *   set PATH VALUE      write VALUE to PATH before anything else
 *   dram_bytes N        leave N bytes free on node 0 when PROGRAM starts
 *   module PATH ARGS    load a kernel module
 *   late PATH VALUE     write after the module
 *   roi_after TEXT      the region begins when TEXT appears on PROGRAM's output, else at its exec; `module` and `late`
 *                       take effect then
 *   roi_until TEXT      the region, and the run, ends when TEXT appears after that, else with PROGRAM
 *   stats NAME DIRECTORY   report every file in it as NAME.FILE, over the region of interest
 *   ask PATH VALUE      write VALUE to PATH before each reading of them
 *   promoted KEY        a counter to tell the plugin every 100 ms (moves.h); demoted likewise
 *   mempolicy interleave | bind N   of PROGRAM and all it starts
 *   env NAME=VALUE, arg TEXT, cwd PATH, stdin PATH
 *   tty 1               PROGRAM's output is a terminal; else standard output and error are a pipe each
 *   share_module PATH, rehearse 1
 *                       load these; run PROGRAM on the host's files and write down which (rehearse.h); no module, no figures
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <linux/module.h>
#include <net/if.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "dram.h"
#include "guest.h"
#include "neotier/mailbox.h"
#include "neotier/mark.h"
#include "moves.h"
#include "rehearse.h"
#include "stats.h"

#define MAX_LINES 512
#define WAKE_MS 100
#define LOADED_MS 100
#define ENABLED_MS 10
#define REHEARSAL_WAKE_MS 10

static struct {
	char *text;
	struct {
		char *key, *value;
	} line[MAX_LINES];
	int lines;
} conf;

static volatile struct neotier_mailbox *mailbox;
static bool as_tool;
static const char *rehearsal_root; /* NULL: no rehearsal */
static volatile uint64_t *used_peak; /* of a rehearsal; shared between processes */

__attribute__((noreturn)) static void power_off(void)
{
	fflush(NULL);
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}

static void copy_to_mailbox(volatile char *to, const char *from, size_t size)
{
	size_t n = strnlen(from, size - 1);

	for (size_t i = 0; i < n; i++)
		to[i] = from[i];
	to[n] = 0;
}

void fail(const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	fprintf(stderr, "neotier init: %s\n", text);
	if (as_tool)
		exit(1);
	if (mailbox) {
		copy_to_mailbox(mailbox->message, text, sizeof mailbox->message);
		mailbox->state = NEOTIER_STATE_FAILED;
	}
	power_off();
}

char *read_file(const char *path, char *buffer, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n, at = 0;

	if (fd < 0)
		return NULL;
	while ((n = read(fd, buffer + at, size - 1 - (size_t)at)) > 0)
		at += n;
	close(fd);
	if (n < 0)
		return NULL;
	buffer[at] = 0;
	return buffer;
}

void write_setting(const char *setting)
{
	char path[PATH_MAX];
	const char *space = strchr(setting, ' ');

	if (!space || (size_t)(space - setting) >= sizeof path)
		fail("bad setting '%s' in /neotier.conf", setting);
	memcpy(path, setting, (size_t)(space - setting));
	path[space - setting] = 0;
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	size_t length = strlen(space + 1);

	if (fd < 0 || write(fd, space + 1, length) != (ssize_t)length)
		fail("cannot write '%s' to %s: %s", space + 1, path, strerror(errno));
	close(fd);
}

static void read_conf(void)
{
	struct stat st;
	char *at;

	if (stat("/neotier.conf", &st))
		fail("no /neotier.conf in the initramfs");
	conf.text = malloc((size_t)st.st_size + 1);
	if (!conf.text || !read_file("/neotier.conf", conf.text, (size_t)st.st_size + 1))
		fail("cannot read /neotier.conf");
	for (char *line = strtok_r(conf.text, "\n", &at); line; line = strtok_r(NULL, "\n", &at)) {
		char *space = strchr(line, ' ');

		if (!space || conf.lines == MAX_LINES)
			fail("/neotier.conf: line '%s' is no 'key value', or there are too many", line);
		*space = 0;
		conf.line[conf.lines].key = line;
		conf.line[conf.lines++].value = space + 1;
	}
}

static const char *conf_value(const char *key)
{
	for (int i = 0; i < conf.lines; i++)
		if (!strcmp(conf.line[i].key, key))
			return conf.line[i].value;
	return NULL;
}

static void conf_each(const char *key, void (*act)(const char *))
{
	for (int i = 0; i < conf.lines; i++)
		if (!strcmp(conf.line[i].key, key))
			act(conf.line[i].value);
}

static void mount_all(void)
{
	mkdir("/proc", 0755), mkdir("/sys", 0755), mkdir("/dev", 0755), mkdir("/tmp", 01777);
	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	mkdir("/dev/pts", 0755), mkdir("/dev/shm", 01777);
	mount("devpts", "/dev/pts", "devpts", 0, "ptmxmode=0666");
	mount("tmpfs", "/dev/shm", "tmpfs", 0, NULL);
	mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, NULL);
	mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL);
}

static void make_region(unsigned int devices, unsigned int granularity)
{
	struct neotier_region region;

	cxl_make_region(devices, granularity, &region);
	memcpy((void *)&mailbox->region, &region, sizeof region);
	NEOTIER_MARK_OP(NEOTIER_OP_REGION);
}

static unsigned int conf_devices(void)
{
	return (unsigned int)strtoul(conf_value("cxl_devices"), NULL, 10);
}

void load_kernel_module(const char *path, const char *arguments)
{
	size_t length = strlen(path);
	bool compressed = length > 3 && !strcmp(path + length - 3, ".xz");
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		fail("cannot open %s: %s", path, strerror(errno));
	if (syscall(SYS_finit_module, fd, arguments, compressed ? MODULE_INIT_COMPRESSED_FILE : 0))
		fail("cannot load %s: %s; see the console log for the module's own message", path, strerror(errno));
	close(fd);
}

static void load_module(const char *value)
{
	char path[PATH_MAX];
	const char *arguments = strchr(value, ' ');

	snprintf(path, sizeof path, "%.*s", arguments ? (int)(arguments - value) : (int)strlen(value), value);
	load_kernel_module(path, arguments ? arguments + 1 : "");
}

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_RAW, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void add_promoted(const char *key)
{
	moves_add(true, key, stats_directory(key));
}

static void add_demoted(const char *key)
{
	moves_add(false, key, stats_directory(key));
}

/*
 * From here on the plugin sees every access. The driver comes after it, because only then does its device answer. Until
 * then a program runs many times faster.
 */
static void instrument(void)
{
	uint64_t free_bytes;

	if (rehearsal_root)
		return;
	free_bytes = dram_lend();
	NEOTIER_MARK_OP(NEOTIER_OP_INSTRUMENT);
	conf_each("module", load_module);
	/* The kernel frees a module's first part, and the module takes its tables, a while later. */
	usleep(LOADED_MS * 1000);
	conf_each("late", write_setting);
	usleep(ENABLED_MS * 1000);
	conf_each("ask", stats_ask);
	conf_each("stats", stats_add);
	conf_each("promoted", add_promoted);
	conf_each("demoted", add_demoted);
	dram_settle(free_bytes);
}

static void roi_begin(void)
{
	moves_tell_read(mailbox, true);
	mailbox->arg[0] = clock_ns();
	NEOTIER_MARK_OP(NEOTIER_OP_ROI_BEGIN);
}

static void set_mempolicy_of_program(void)
{
	const char *text = conf_value("mempolicy");
	unsigned long nodes = 3;
	int mode = MPOL_INTERLEAVE;

	if (!text)
		return;
	if (!strncmp(text, "bind ", 5)) {
		mode = MPOL_BIND;
		nodes = 1ul << strtoul(text + 5, NULL, 10);
	} else if (strcmp(text, "interleave")) {
		fail("bad mempolicy '%s' in /neotier.conf", text);
	}
	if (syscall(SYS_set_mempolicy, mode, &nodes, 8 * sizeof nodes))
		fail("set_mempolicy %s: %s", text, strerror(errno));
}

/* Clients and servers of one machine talk over the loopback interface. */
static void loopback_up(void)
{
	struct ifreq request = { .ifr_name = "lo" };
	int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (s < 0)
		return;
	if (!ioctl(s, SIOCGIFFLAGS, &request)) {
		request.ifr_flags |= IFF_UP;
		ioctl(s, SIOCSIFFLAGS, &request);
	}
	close(s);
}

/* Names of the processes that are there besides this one and the kernel's, into the mailbox. */
static void name_left_running(void)
{
	char text[sizeof mailbox->message] = "", path[PATH_MAX], line[512];
	DIR *processes = opendir("/proc");
	struct dirent *entry;
	size_t at = 0;

	while (processes && (entry = readdir(processes))) {
		long pid = strtol(entry->d_name, NULL, 10);

		if (pid <= 2)
			continue;
		snprintf(path, sizeof path, "/proc/%ld/stat", pid);
		/* pid (name) state parent: name may contain anything, so from the last parenthesis on. */
		char *name = read_file(path, line, sizeof line) ? strchr(line, '(') : NULL;
		char *end = name ? strrchr(name, ')') : NULL;

		if (!end || strlen(end) < 5 || end[2] == 'Z' || strtol(end + 4, NULL, 10) == 2)
			continue;
		*end = 0;
		at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", at ? ", " : "", name + 1);
		if (at >= sizeof text)
			break;
	}
	if (processes)
		closedir(processes);
	copy_to_mailbox(mailbox->message, text, sizeof mailbox->message);
}

static char *program_argv[MAX_LINES + 1];

__attribute__((noreturn)) static void exec_program(void)
{
	execv(program_argv[0], program_argv);
	int error = errno;
	dprintf(2, "neotier init: cannot run %s: %s\n", program_argv[0], strerror(error));
	_exit(error == ENOENT ? 127 : 126);
}

/* `ends`: what PROGRAM writes to, by stream; for a terminal the first two are one. */
static void run_child(const int ends[NR_NEOTIER_STREAM])
{
	int argc = 0;
	const char *cwd = conf_value("cwd");

	for (int i = 0; i < conf.lines; i++)
		if (!strcmp(conf.line[i].key, "arg"))
			program_argv[argc++] = conf.line[i].value;
	for (int i = 0; i < conf.lines; i++)
		if (!strcmp(conf.line[i].key, "env"))
			putenv(conf.line[i].value);
	setenv(NEOTIER_MAILBOX_ENV, first_bar_path(), 1);
	setsid();
	const char *input = conf_value("stdin") ? conf_value("stdin") : "/dev/null";
	int from = open(input, O_RDONLY);
	if (from < 0)
		fail("cannot open %s: %s", input, strerror(errno));
	if (rehearsal_root && chroot(rehearsal_root))
		fail("cannot change the root to %s: %s", rehearsal_root, strerror(errno));
	if ((cwd || rehearsal_root) && chdir(cwd ? cwd : "/"))
		fail("cannot change to %s: %s", cwd, strerror(errno));
	dup2(from, 0), dup2(ends[NEOTIER_STREAM_OUTPUT], 1), dup2(ends[NEOTIER_STREAM_ERROR], 2);
	if (from > 2)
		close(from);
	set_mempolicy_of_program();
	if (!conf_value("roi_after"))
		roi_begin();
	if (rehearsal_root)
		rehearse_trace(exec_program, ends[NEOTIER_STREAM_FILES], used_peak);
	exec_program();
}

/* Looks for a text in a stream that comes in pieces. */
struct search {
	const char *text; /* NULL: looks for nothing; at most 4095 characters */
	char seen[8192];
	size_t kept;
};

static bool found(struct search *search, const char *piece, size_t size)
{
	if (!search->text)
		return false;
	size_t length = strlen(search->text), keep = length - 1, all = search->kept + size;

	memcpy(search->seen + search->kept, piece, size);
	bool there = memmem(search->seen, all, search->text, length);
	search->kept = all < keep ? all : keep;
	memmove(search->seen, search->seen + all - search->kept, search->kept);
	return there;
}

/* Nobody runs, and nothing is counted, while the machine is made ready. */
static void begin_while_running(void)
{
	if (rehearsal_root) { /* nothing is made ready, and what stops a traced program stops its tracer */
		roi_begin();
		return;
	}
	kill(-1, SIGSTOP);
	instrument();
	stats_read(mailbox, true);
	roi_begin();
	kill(-1, SIGCONT);
}

/* The host takes it in no time of the guest's: what is printed weighs the same whatever the host's disk does. */
static void hand_over(enum neotier_stream stream, const char *bytes, size_t size)
{
	memcpy((char *)mailbox + NEOTIER_OUTPUT_OFFSET - NEOTIER_MAILBOX_OFFSET, bytes, size);
	mailbox->arg[1] = (uint64_t)stream;
	mailbox->arg[2] = size;
	NEOTIER_MARK_OP(NEOTIER_OP_OUTPUT);
}

/*
 * Passes on what comes from the `from` of each stream (-1: none) until all are closed or the program has ended; begins the
 * region when `after` appears in the program's output. Returns true, with everything stopped, as soon as `until` appears in
 * the region.
 */
static bool pass_output(int from[NR_NEOTIER_STREAM], const char *after, const char *until, pid_t child, int *status)
{
	static struct search begin[NR_NEOTIER_STREAM], end[NR_NEOTIER_STREAM];
	static char buffer[4096];
	bool running = true, begun = !after, cut = false;
	struct pollfd p[NR_NEOTIER_STREAM];
	int open_streams = 0;

	for (int i = 0; i < NR_NEOTIER_STREAM; i++) {
		p[i] = (struct pollfd){ .fd = from[i], .events = POLLIN };
		open_streams += from[i] >= 0;
		begin[i].text = after;
		end[i].text = until;
	}
	while (open_streams) {
		/*
		 * Descendants may keep the output open after the program has ended: only the program counts. Waking up
		 * now and then costs the guest 0.01 %, and makes QEMU's software TLB, which it resizes only when it is
		 * flushed, grow to the program's working set: twice the simulation speed for GUPS.
		 */
		int wake = rehearsal_root ? REHEARSAL_WAKE_MS : WAKE_MS;
		int ready = poll(p, NR_NEOTIER_STREAM, running && !cut ? wake : 0);

		moves_tell_if_due(mailbox);
		if (rehearsal_root)
			rehearse_sample(used_peak);
		if (ready == 0) {
			if (!running || cut)
				return cut;
			if (waitpid(child, status, WNOHANG) == child)
				running = false;
			continue;
		}
		for (int i = 0; i < NR_NEOTIER_STREAM; i++) {
			if (!p[i].revents)
				continue;
			ssize_t n = read(p[i].fd, buffer, sizeof buffer);

			if (n <= 0) {
				p[i].fd = -1;
				open_streams--;
				continue;
			}
			hand_over((enum neotier_stream)i, buffer, (size_t)n);
			if (i == NEOTIER_STREAM_FILES || cut)
				continue;
			if (!begun) {
				if (found(&begin[i], buffer, (size_t)n)) {
					begun = true;
					begin_while_running();
				}
			} else if (found(&end[i], buffer, (size_t)n)) {
				kill(-1, SIGSTOP);
				if (!rehearsal_root)
					return true;
				cut = true; /* what is still on its way to the list of files belongs to it */
			}
		}
		if (running && waitpid(child, status, WNOHANG) == child)
			running = false;
	}
	if (running && !cut)
		waitpid(child, status, 0);
	return cut;
}

/* A text to wait for on PROGRAM's output, or NULL. */
static const char *awaited_text(const char *key)
{
	const char *text = conf_value(key);

	if (text && (!*text || strlen(text) >= 4096))
		fail("the text of %s must have 1 to 4095 characters", key);
	return text;
}

static void make_pipe(int from[], int ends[], enum neotier_stream stream)
{
	int both[2];

	if (pipe2(both, O_CLOEXEC))
		fail("pipe: %s", strerror(errno));
	from[stream] = both[0];
	ends[stream] = both[1];
}

static void make_terminal(int from[], int ends[])
{
	struct termios raw;
	int master, slave;

	memset(&raw, 0, sizeof raw);
	cfmakeraw(&raw);
	raw.c_cflag |= CS8 | CREAD | CLOCAL | B115200;
	if (openpty(&master, &slave, NULL, &raw, NULL))
		fail("openpty: %s", strerror(errno));
	fcntl(master, F_SETFD, FD_CLOEXEC);
	fcntl(slave, F_SETFD, FD_CLOEXEC);
	from[NEOTIER_STREAM_OUTPUT] = master;
	ends[NEOTIER_STREAM_OUTPUT] = ends[NEOTIER_STREAM_ERROR] = slave;
}

static void begin_rehearsal(void)
{
	conf_each("share_module", load_module);
	rehearsal_root = rehearse_mount();
	used_peak = mmap(NULL, sizeof *used_peak, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (used_peak == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
}

static void run_program(void)
{
	const char *after = awaited_text("roi_after"), *until = awaited_text("roi_until");
	int from[NR_NEOTIER_STREAM] = { -1, -1, -1 }, ends[NR_NEOTIER_STREAM] = { -1, -1, -1 }, status = 0;
	uint64_t used = 0;

	if (!conf_value("arg"))
		fail("/neotier.conf names no program");
	if (conf_value("tty")) {
		make_terminal(from, ends);
	} else {
		make_pipe(from, ends, NEOTIER_STREAM_OUTPUT);
		make_pipe(from, ends, NEOTIER_STREAM_ERROR);
	}
	if (rehearsal_root) {
		make_pipe(from, ends, NEOTIER_STREAM_FILES);
		*used_peak = used = rehearse_used_bytes();
	}

	if (conf_value("dram_bytes"))
		dram_settle(strtoull(conf_value("dram_bytes"), NULL, 10));
	if (!after)
		instrument();
	mailbox->free_bytes[0] = dram_free_bytes(0);
	mailbox->free_bytes[1] = dram_free_bytes(1);
	stats_read(mailbox, true);
	mailbox->state = NEOTIER_STATE_RUNNING;
	pid_t child = fork();
	if (child < 0)
		fail("fork: %s", strerror(errno));
	if (child == 0)
		run_child(ends);
	for (int i = 0; i < NR_NEOTIER_STREAM; i++)
		if (ends[i] >= 0 && (i == 0 || ends[i] != ends[i - 1]))
			close(ends[i]);
	bool cut = pass_output(from, after, until, child, &status);
	mailbox->arg[0] = clock_ns();
	NEOTIER_MARK_OP(NEOTIER_OP_ROI_END);

	if (rehearsal_root)
		mailbox->peak_bytes = *used_peak - used;
	stats_read(mailbox, false);
	moves_tell_read(mailbox, false);
	if (!cut)
		name_left_running();
	const char *oom = strstr((const char *)mailbox->report, "vmstat.oom_kill ");

	mailbox->oom_kills = oom ? (uint32_t)strtoul(oom + 16, NULL, 10) : 0;
	mailbox->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
	mailbox->term_signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	mailbox->state = NEOTIER_STATE_DONE;
}

static int tool(int argc, char **argv)
{
	char *end = NULL;
	unsigned long granularity = argc == 3 && !strcmp(argv[1], "region") ? strtoul(argv[2], &end, 10) : 0;

	as_tool = true;
	if (!end || *end || !granularity) {
		fprintf(stderr, "usage: %s region GRANULARITY\n", argv[0]);
		return 2;
	}
	mailbox = map_bars();
	read_conf();
	if (!conf_value("cxl_devices"))
		fail("this machine has no CXL devices: neotier hil run --machine cxl has");
	make_region(conf_devices(), (unsigned int)granularity);
	return 0;
}

int main(int argc, char **argv)
{
	if (getpid() != 1)
		return tool(argc, argv);
	mount_all();
	loopback_up();
	mailbox = map_bars();
	mailbox->state = NEOTIER_STATE_SETUP;
	read_conf();
	if (conf_value("cxl_devices")) {
		conf_each("cxl_module", load_module);
		make_region(conf_devices(), (unsigned int)strtoul(conf_value("cxl_granularity"), NULL, 10));
	}
	conf_each("set", write_setting);
	if (conf_value("dram_bytes"))
		dram_trim(strtoull(conf_value("dram_bytes"), NULL, 10));
	if (conf_value("rehearse"))
		begin_rehearsal();
	run_program();
	power_off();
}
