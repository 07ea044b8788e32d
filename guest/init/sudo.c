// The command `sudo` of a session that may have root: a copy of PID 1's program with the set-user-id
// bit. Every user of the machine may use it, so it protects nothing. It takes the usual options, and
// keeps the environment, which has the machine's certificates and proxies.
#define _GNU_SOURCE
#include "sessionmore.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROOT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

static int refuse(const char *what, const char *why)
{
	fprintf(stderr, "sudo: %s%s%s\n", what, *why ? ": " : "", why);
	return 1;
}

// find_user finds a user by name, or by #NUMBER.
static const struct passwd *find_user(const char *name)
{
	static struct passwd root = {.pw_name = "root", .pw_dir = "/root", .pw_shell = "/bin/sh"};
	FILE *list = fopen("/etc/passwd", "re");
	struct passwd *p = NULL;
	while (list && (p = fgetpwent(list)) != NULL)
		if (*name == '#' ? p->pw_uid == strtoul(name + 1, NULL, 10) : strcmp(p->pw_name, name) == 0)
			break;  // p stays valid, because nothing reads the list again
	if (list)
		fclose(list);
	if (p && p->pw_uid == 0 && strcmp(p->pw_dir, "/") == 0)
		p->pw_dir = root.pw_dir;
	return p ? p : strcmp(name, "root") == 0 || strcmp(name, "#0") == 0 ? &root : NULL;
}

// quoted returns the arguments as a command line for a shell.
static char *quoted(char **args)
{
	size_t n = 1;
	for (char **a = args; *a; a++)
		n += 2 * strlen(*a) + 1;
	char *line = malloc(n), *to = line;
	for (; line && *args; args++) {
		for (const char *s = *args; *s; s++) {
			if (!isalnum((unsigned char)*s) && !strchr("_-$", *s))
				*to++ = '\\';
			*to++ = *s;
		}
		if (args[1])
			*to++ = ' ';
	}
	if (line)
		*to = 0;
	return line;
}

static void set_environment(const struct passwd *to, int keep_home)
{
	char number[16];
	snprintf(number, sizeof number, "%u", (unsigned)getuid());
	setenv("SUDO_UID", number, 1);
	snprintf(number, sizeof number, "%u", (unsigned)getgid());
	setenv("SUDO_GID", number, 1);
	setenv("SUDO_USER", getuid() == 0 ? "root" : "user", 1);
	setenv("USER", to->pw_name, 1);
	setenv("LOGNAME", to->pw_name, 1);
	if (!keep_home)
		setenv("HOME", to->pw_dir, 1);
	char path[MAX_PATH];
	const char *own = getenv("PATH");
	snprintf(path, sizeof path, ROOT_PATH "%s%s", own ? ":" : "", own ? own : "");
	setenv("PATH", path, 1);
}

int sudo(int argc, char **argv)
{
	static const struct option names[] = {
		{"preserve-env", optional_argument, NULL, 'E'}, {"non-interactive", no_argument, NULL, 'n'},
		{"user", required_argument, NULL, 'u'}, {"login", no_argument, NULL, 'i'}, {"shell", no_argument, NULL, 's'},
		{"set-home", no_argument, NULL, 'H'}, {"stdin", no_argument, NULL, 'S'}, {"validate", no_argument, NULL, 'v'},
		{"version", no_argument, NULL, 'V'}, {0},
	};
	const char *user = "root";
	int login = 0, shell = 0, keep = 0, c;
	while ((c = getopt_long(argc, argv, "+Au:g:p:C:h:EHPSKknisvVlb", names, NULL)) != -1) {
		if (c == '?')
			return 1;
		if (c == 'V')
			return puts("Sudo of unitask") < 0;
		if (c == 'v' || c == 'l' || c == 'K')
			return 0;
		user = c == 'u' ? optarg : user;
		login |= c == 'i', shell |= c == 's', keep |= c == 'E';
	}
	argv += optind;
	const struct passwd *to = find_user(user);
	if (to == NULL)
		return refuse("no such user", user);
	set_environment(to, keep);
	for (; *argv && strchr(*argv, '=') && **argv != '=' && **argv != '/'; argv++)
		putenv(*argv);
	if (*argv == NULL && !login && !shell)
		return refuse("usage: sudo [-EHins] [-u USER] [NAME=VALUE]… COMMAND…", "");
	char *const own = getenv("SHELL"), *program = shell && own && *own ? own : to->pw_shell && *to->pw_shell ? to->pw_shell : "/bin/sh";
	char *args[5] = {program, NULL};
	if (login || shell) {
		int n = 1;
		if (login)
			args[n++] = "-l";
		if (*argv)
			args[n++] = "-c", args[n++] = quoted(argv);
		argv = args;
	}
	if (setgroups(0, NULL) < 0 || setgid(to->pw_gid) < 0 || setuid(to->pw_uid) < 0)
		return refuse("become another user", strerror(errno));
	if (login && chdir(to->pw_dir) < 0)
		return refuse(to->pw_dir, strerror(errno));
	execvp(argv[0], argv);
	return refuse(argv[0], errno == ENOENT ? "command not found" : strerror(errno));
}
