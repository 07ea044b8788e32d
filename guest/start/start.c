#define _GNU_SOURCE
#include "start.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int start_ctl = 3;

static void fail(const char *what)
{
	dprintf(STDERR_FILENO, "unitask: start: %s\n", what);
	_exit(EXIT_UNKNOWN);
}

static void *get(size_t n)
{
	void *p = calloc(1, n);
	if (p == NULL)
		fail("no memory");
	return p;
}

void start_word(char word)
{
	ssize_t n;
	while ((n = write(start_ctl, &word, 1)) < 0 && errno == EINTR)
		;
	if (n != 1)
		_exit(EXIT_UNKNOWN);
}

static void read_exactly(void *to, size_t n)
{
	for (char *p = to; n > 0;) {
		ssize_t r = read(start_ctl, p, n);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			_exit(EXIT_UNKNOWN);
		p += r;
		n -= (size_t)r;
	}
}

// Parses JSON as Go's encoder writes it for guest.Start: an object of strings, lists of strings and
// objects of strings. The parser works in place, because no value gets longer.

static int hex(const char *p, int n)
{
	int v = 0;
	for (int i = 0; i < n; i++) {
		const char *digits = "0123456789abcdef", *at = p[i] ? strchr(digits, p[i]) : NULL;
		if (at == NULL)
			return -1;
		v = v << 4 | (int)(at - digits);
	}
	return v;
}

static char *at;  // the next character to parse

static int next_is(char c)
{
	if (*at != c)
		return 0;
	at++;
	return 1;
}

static void need(char c)
{
	if (!next_is(c))
		fail("cannot be read");
}

static char *string(void)
{
	need('"');
	char *from = at, *to = at;
	while (*at != '"') {
		int c = (unsigned char)*at++;
		if (c == 0)
			fail("cannot be read");
		if (c != '\\') {
			*to++ = (char)c;
			continue;
		}
		static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
		c = *at++;
		const char *name = c ? strchr(names, c) : NULL;
		if (name) {
			*to++ = values[name - names];
			continue;
		}
		int code = c == 'u' ? hex(at, 4) : -1;
		// Go writes characters above U+FFFF without escapes.
		if (code <= 0 || (code >= 0xd800 && code < 0xe000))
			fail("cannot be read");
		at += 4;
		if (code >= 0x800)
			*to++ = (char)(0xe0 | code >> 12);
		if (code >= 0x80)
			*to++ = (char)(code >= 0x800 ? 0x80 | (code >> 6 & 0x3f) : 0xc0 | code >> 6);
		*to++ = (char)(code >= 0x80 ? 0x80 | (code & 0x3f) : code);
	}
	at++;
	*to = 0;
	return from;
}

static char **append(char **list, size_t n, char *s)
{
	if ((n & (n + 1)) == 0 && (list = realloc(list, 2 * (n + 1) * sizeof *list)) == NULL)
		fail("no memory");
	list[n] = s;
	return list;
}

// strings parses a list, or an object, of which each pair becomes NAME=VALUE.
static char **strings(char open)
{
	char **list = NULL, close = open == '{' ? '}' : ']';
	size_t n = 0;
	need(open);
	while (!next_is(close)) {
		if (n > 0)
			need(',');
		char *s = string();
		if (close == '}') {
			char *end = s + strlen(s);
			need(':');
			char *value = string();
			*end = '=';  // the end of a name frees at least two bytes: a quote and a colon
			memmove(end + 1, value, strlen(value) + 1);
		}
		list = append(list, n++, s);
	}
	return append(list, n, NULL);
}

static void parse(struct start *s)
{
	char *entropy = NULL;
	at = s->text;
	need('{');
	do {
		char *name = string();
		need(':');
		if (strcmp(name, "argv") == 0)
			s->argv = strings('[');
		else if (strcmp(name, "env") == 0)
			s->env = strings('{');
		else if (strcmp(name, "flags") == 0)
			s->flags = strings('[');
		else if (strcmp(name, "readOnly") == 0)
			s->read_only = strings('[');
		else if (strcmp(name, "cwd") == 0)
			s->cwd = string();
		else if (strcmp(name, "ca") == 0)
			s->ca = string();
		else if (strcmp(name, "rehearsal") == 0)
			s->rehearsal = string();
		else if (strcmp(name, "compiled") == 0)
			s->compiled = string();
		else if (strcmp(name, "entropy") == 0)
			entropy = string();
		else
			free(*at == '"' ? (string(), NULL) : strings('['));
	} while (next_is(','));
	need('}');
	if (s->argv == NULL || s->argv[0] == NULL || s->env == NULL || s->cwd == NULL)
		fail("lacks something");
	if (s->flags == NULL)
		s->flags = append(NULL, 0, NULL);
	if (s->read_only == NULL)
		s->read_only = append(NULL, 0, NULL);
	// Refuse to run without fresh entropy, because a clone shares all its state with other clones.
	if (entropy == NULL || strlen(entropy) != 2 * ENTROPY_SIZE)
		fail("has no fresh entropy");
	for (int i = 0; i < ENTROPY_SIZE; i++) {
		int v = hex(entropy + 2 * i, 2);
		if (v < 0)
			fail("has no fresh entropy");
		s->entropy[i] = (uint8_t)v;
	}
}

static void wait_for(struct start *s)
{
	uint8_t header[HEADER_SIZE];
	uint32_t n;
	read_exactly(header, sizeof header);
	memcpy(&n, header, sizeof n);
	n = ntohl(n);
	if (header[HEADER_SIZE - 1] != FRAME_START || n > MAX_FRAME)
		fail("is none");
	*s = (struct start){.text = get(n + 1)};
	read_exactly(s->text, n);
	parse(s);
}

void start_free(struct start *s)
{
	free(s->argv);
	free(s->env);
	free(s->flags);
	free(s->read_only);
	free(s->text);
	*s = (struct start){0};
}

// remove_folder removes a folder and the files in it.
static void remove_folder(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	while (d && (e = readdir(d)) != NULL)
		unlinkat(dirfd(d), e->d_name, 0);  // fails for . and .., which are folders
	if (d)
		closedir(d);
	rmdir(dir);
}

void start_take(struct start *s, void (*rehearse)(struct start *))
{
	start_word(CONTROL_READY);
	for (;;) {
		wait_for(s);
		if (!s->rehearsal)
			return;
		if (rehearse)
			rehearse(s);
		remove_folder(s->cwd);
		start_word(CONTROL_REHEARSED);
		start_free(s);
	}
}

void start_rehearse(struct start *s, void (*become)(struct start *), const char *language)
{
	pid_t pid = fork();
	if (pid == 0)
		become(s);
	int status = 0;
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (pid < 0 || status != 0) {
		dprintf(STDERR_FILENO, "unitask: the rehearsal of %s ended with status %d\n", language, status);
		_exit(EXIT_UNKNOWN);
	}
}

char **start_join(const char *first, char **a, char **b)
{
	char **lists[2] = {a, b}, **all = append(NULL, 0, (char *)first);
	size_t n = 1;
	for (int i = 0; i < 2; i++)
		for (char **s = lists[i]; *s; s++)
			all = append(all, n++, *s);
	return append(all, n, NULL);
}

// Certificates --------------------------------------------------------------

#define BUNDLE "/etc/ssl/certs/ca-certificates.crt"

static void copy_file(const char *from, int to)
{
	char buf[16 << 10];
	ssize_t n;
	int fd = open(from, O_RDONLY | O_CLOEXEC);
	while (fd >= 0 && (n = read(fd, buf, sizeof buf)) > 0)
		if (write(to, buf, (size_t)n) != n)
			break;
	if (fd >= 0)
		close(fd);
}

void start_trust(struct start *s)
{
	// OpenSSL, curl, git and Python's clients read these variables. They also trust the certificates
	// that the code's own environment names.
	static const char *const names[] = {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE"};
	if (s->ca == NULL || *s->ca == 0)
		return;
	int to = open(TRUSTED, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (to < 0)
		fail(strerror(errno));
	copy_file(BUNDLE, to);
	size_t n = 0;
	while (s->env[n])
		n++;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		size_t len = strlen(names[i]), had = 0;
		while (s->env[had] && (strncmp(s->env[had], names[i], len) != 0 || s->env[had][len] != '='))
			had++;
		if (s->env[had])
			copy_file(s->env[had] + len + 1, to);
		char *variable = get(len + sizeof "=" TRUSTED);
		sprintf(variable, "%s=" TRUSTED, names[i]);
		if (s->env[had])
			s->env[had] = variable;
		else
			s->env = append(append(s->env, n, variable), n + 1, NULL), n++;
	}
	dprintf(to, "\n%s\n", s->ca);
	close(to);
}

void start_exec(const char *path, char **argv, char **env)
{
	signal(SIGPIPE, SIG_DFL);  // init ignores it
	execve(path, argv, env);
	dprintf(STDERR_FILENO, "unitask: cannot execute %s: %s\n", path, strerror(errno));
	_exit(EXIT_NO_EXEC);
}
