/* SPDX-License-Identifier: GPL-2.0-or-later */
#define _GNU_SOURCE
#include "rehearse.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest.h"

#define HOST "/neotier/host"
#define CHANGES "/neotier/changes"
#define OVER "/neotier/over"
#define ROOT "/neotier/root"

static void mount_or_fail(const char *what, const char *where, const char *type, unsigned long flags, const char *options)
{
	mkdir(where, 0755);
	if (mount(what, where, type, flags, options))
		fail("cannot mount %s at %s: %s", what, where, strerror(errno));
}

const char *rehearse_mount(void)
{
	static const char *const own[] = { "/proc", "/sys", "/dev" };

	mount_or_fail("host", HOST, "9p", MS_RDONLY, "trans=virtio,version=9p2000.L,msize=262144,cache=loose");
	mount_or_fail("changes", CHANGES, "tmpfs", 0, "size=100%");
	mkdir(CHANGES "/upper", 0755);
	mkdir(CHANGES "/work", 0755);
	mount_or_fail("overlay", ROOT, "overlay", 0,
		      "lowerdir=" OVER ":" HOST ",upperdir=" CHANGES "/upper,workdir=" CHANGES "/work");
	for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
		char at[64];

		snprintf(at, sizeof at, ROOT "%s", own[i]);
		mount_or_fail(own[i], at, NULL, MS_BIND | MS_REC, NULL);
	}
	return ROOT;
}

uint64_t rehearse_used_bytes(void)
{
	/* What a page of a file takes goes with the file, which lies in memory anyway where figures are made. */
	static const struct {
		const char *key;
		int sign;
	} part[] = { { "MemTotal:", 1 }, { "MemFree:", -1 }, { "Buffers:", -1 }, { "Cached:", -1 }, { "Shmem:", 1 },
		     { "SReclaimable:", -1 } };
	char text[8192];
	int64_t sum = 0;

	if (!read_file("/proc/meminfo", text, sizeof text))
		return 0;
	for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
		char key[32];

		/* At the beginning of a line: "SwapCached:" is another. */
		snprintf(key, sizeof key, "%s%s", i ? "\n" : "", part[i].key);
		const char *line = strstr(text, key);

		if (line)
			sum += part[i].sign * strtoll(line + strlen(key), NULL, 10) * 1024;
	}
	return sum > 0 ? (uint64_t)sum : 0;
}

void rehearse_sample(volatile uint64_t *peak)
{
	uint64_t used = rehearse_used_bytes();

	if (used > *peak)
		*peak = used;
}

/* System calls that take a path, and where: the arguments that are the folder it is relative to (-1: the current one) and it. */
static const struct traced {
	long number;
	int folder, path;
	char kind; /* 0: by the flags of open(2) that are the argument after the path */
} calls[] = {
	{ SYS_open, -1, 0, 0 },
	{ SYS_openat, 0, 1, 0 },
	{ SYS_openat2, 0, 1, 'o' },
	{ SYS_creat, -1, 0, 'w' },
	{ SYS_execve, -1, 0, 'x' },
	{ SYS_execveat, 0, 1, 'x' },
	{ SYS_stat, -1, 0, 'r' },
	{ SYS_lstat, -1, 0, 'r' },
	{ SYS_newfstatat, 0, 1, 'r' },
	{ SYS_statx, 0, 1, 'r' },
	{ SYS_access, -1, 0, 'r' },
	{ SYS_faccessat, 0, 1, 'r' },
	{ SYS_faccessat2, 0, 1, 'r' },
	{ SYS_readlink, -1, 0, 'r' },
	{ SYS_readlinkat, 0, 1, 'r' },
	{ SYS_chdir, -1, 0, 'r' },
	{ SYS_chmod, -1, 0, 'r' },
	{ SYS_fchmodat, 0, 1, 'r' },
	{ SYS_truncate, -1, 0, 'r' },
	{ SYS_utimensat, 0, 1, 'r' },
	{ SYS_statfs, -1, 0, 'r' },
	{ SYS_link, -1, 0, 'r' },
	{ SYS_linkat, 0, 1, 'r' },
	{ SYS_rename, -1, 0, 'r' },
	{ SYS_rename, -1, 1, 'w' },
	{ SYS_renameat, 0, 1, 'r' },
	{ SYS_renameat, 2, 3, 'w' },
	{ SYS_renameat2, 0, 1, 'r' },
	{ SYS_renameat2, 2, 3, 'w' },
	{ SYS_mkdir, -1, 0, 'w' },
	{ SYS_mkdirat, 0, 1, 'w' },
	{ SYS_rmdir, -1, 0, 'r' },
	{ SYS_unlink, -1, 0, 'r' },
	{ SYS_unlinkat, 0, 1, 'r' },
	{ SYS_symlink, -1, 1, 'w' },
	{ SYS_symlinkat, 1, 2, 'w' },
};

#define CALLS (sizeof calls / sizeof *calls)

/* Only these calls stop the program; the others run as they would. */
static void filter_calls(void)
{
	struct sock_filter code[3 + CALLS + 2];
	size_t n = 0;

	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
	code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, CALLS + 1);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < CALLS; i++)
		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)calls[i].number,
							 (unsigned char)(CALLS - i), 0);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
	struct sock_fprog program = { .len = (unsigned short)n, .filter = code };

	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		fail("cannot trace the program: %s", strerror(errno));
}

/* Memory of the traced process, up to the first zero byte where `text`; it may end at any page. */
static bool peek(pid_t pid, uint64_t address, void *to, size_t size, bool text)
{
	size_t at = 0;

	while (at < size) {
		size_t page = 4096 - ((address + at) & 4095);
		size_t n = page < size - at ? page : size - at;
		struct iovec local = { (char *)to + at, n }, remote = { (void *)(uintptr_t)(address + at), n };

		if (process_vm_readv(pid, &local, 1, &remote, 1, 0) != (ssize_t)n)
			return false;
		if (text && memchr((char *)to + at, 0, n))
			return true;
		at += n;
	}
	return !text;
}

/* The first time that a line is asked for. The table grows never: once it is full every line counts as new. */
static bool is_new(const char *line)
{
	enum { SLOTS = 1 << 17 };
	static uint64_t seen[SLOTS];
	static unsigned int used;
	uint64_t hash = 14695981039346656037ull;

	for (const char *c = line; *c; c++)
		hash = (hash ^ (unsigned char)*c) * 1099511628211ull;
	hash |= 1;
	for (size_t i = hash % SLOTS; used < SLOTS / 4 * 3; i = (i + 1) % SLOTS) {
		if (seen[i] == hash)
			return false;
		if (!seen[i]) {
			seen[i] = hash;
			used++;
			return true;
		}
	}
	return true;
}

static char kind_of_open(uint64_t flags)
{
	return (flags & O_TRUNC) && (flags & O_ACCMODE) != O_RDONLY ? 'w' : 'r';
}

static void write_down(pid_t pid, const struct traced *call, const uint64_t *arguments, int log)
{
	char line[2 * PATH_MAX + 4], *path = line + 1;
	size_t base = 0;

	if (!peek(pid, arguments[call->path], path, PATH_MAX, true) || !*path)
		return;
	if (*path != '/') {
		char link[64], relative[PATH_MAX];
		int folder = call->folder < 0 ? AT_FDCWD : (int)arguments[call->folder];

		snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/%d/cwd" : "/proc/%d/fd/%d", pid, folder);
		memcpy(relative, path, PATH_MAX);
		ssize_t n = readlink(link, path, PATH_MAX);
		if (n <= 0 || *path != '/')
			return;
		base = (size_t)n;
		path[base++] = '/';
		snprintf(path + base, PATH_MAX, "%s", relative);
	}
	line[0] = call->kind;
	if (call->kind == 0) {
		line[0] = kind_of_open(arguments[call->path + 1]);
	} else if (call->kind == 'o') {
		struct open_how how;

		line[0] = peek(pid, arguments[call->path + 1], &how, sizeof how, false) ? kind_of_open(how.flags) : 'r';
	}
	size_t length = strlen(line) + 1;

	if (is_new(line) && write(log, line, length) != (ssize_t)length)
		_exit(127);
}

static void on_call(pid_t pid, int log)
{
	struct user_regs_struct r;

	if (ptrace(PTRACE_GETREGS, pid, NULL, &r))
		return;
	const uint64_t arguments[] = { r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9 };

	for (size_t i = 0; i < CALLS; i++)
		if (calls[i].number == (long)r.orig_rax)
			write_down(pid, &calls[i], arguments, log);
}

/* Ends as `status` says of another process. */
__attribute__((noreturn)) static void end_as(int status)
{
	if (WIFSIGNALED(status)) {
		struct rlimit none = { 0, 0 };

		setrlimit(RLIMIT_CORE, &none);
		signal(WTERMSIG(status), SIG_DFL);
		kill(getpid(), WTERMSIG(status));
	}
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 127);
}

void rehearse_trace(void (*exec_program)(void), int log, volatile uint64_t *peak)
{
	const long options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE |
			     PTRACE_O_TRACEEXIT;
	int gate[2], status;
	char byte;

	if (pipe2(gate, O_CLOEXEC))
		fail("pipe: %s", strerror(errno));
	pid_t program = fork();

	if (program < 0)
		fail("fork: %s", strerror(errno));
	if (program == 0) {
		close(gate[1]);
		if (read(gate[0], &byte, 1) != 0) /* until the tracer is there */
			_exit(127);
		filter_calls();
		exec_program();
	}
	close(gate[0]);
	if (ptrace(PTRACE_SEIZE, program, NULL, options))
		fail("cannot trace the program: %s", strerror(errno));
	close(gate[1]);
	for (;;) {
		pid_t pid = waitpid(-1, &status, __WALL);
		long inject = 0;

		if (pid < 0) {
			if (errno == EINTR)
				continue;
			_exit(127);
		}
		if (!WIFSTOPPED(status)) {
			if (pid == program)
				end_as(status);
			continue;
		}
		switch (status >> 16) {
		case 0:
			inject = WSTOPSIG(status);
			break;
		case PTRACE_EVENT_SECCOMP:
			on_call(pid, log);
			break;
		case PTRACE_EVENT_EXIT: /* its memory is still there */
			rehearse_sample(peak);
			break;
		case PTRACE_EVENT_STOP:
			if (WSTOPSIG(status) != SIGTRAP) { /* a group's stop: it stays until somebody continues it */
				ptrace(PTRACE_LISTEN, pid, NULL, NULL);
				continue;
			}
			break;
		default:
			break;
		}
		ptrace(PTRACE_CONT, pid, NULL, inject);
	}
}
