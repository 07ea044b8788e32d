// Compiles and links a single file without the go command, which takes longer than compiler and
// linker together. Most of its work is unnecessary for a single file without a module. COMMANDS holds
// the commands of compiler and linker, as the go command wrote them when the toolchain was vendored
// (image/gorun.go). The program is identical except for its build id.
#define _GNU_SOURCE
#include "build.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef GO_WORK  // a test sets another one
#define GO_WORK "/tmp/go-build"
#endif
#define DIRECT GO_ROOT "/direct"
#define COMMANDS DIRECT "/commands"  // an argument per line: the compiler's, an empty line, the linker's
#define MAX_DIRECT (64 << 10)
#define MAX_TEXT (16 << 20)  // bytes of a source
#define MAX_SAID (1 << 20)   // bytes of the compiler's output

// read_file returns a file's text. It returns NULL if the file is unreadable, larger than max, or
// contains a NUL.
static char *read_file(const char *path, size_t max)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char *text = NULL;
	size_t n = 0;
	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (size_t)st.st_size <= max)
		text = calloc(1, (size_t)st.st_size + 1);
	for (ssize_t r = 1; text && n < (size_t)st.st_size && r > 0; n += r > 0 ? (size_t)r : 0)
		r = read(fd, text + n, (size_t)st.st_size - n);
	if (fd >= 0)
		close(fd);
	if (text && (n != (size_t)st.st_size || strlen(text) != n)) {
		free(text);
		return NULL;
	}
	return text;
}

static int ends(const char *s, const char *with)
{
	size_t n = strlen(s), m = strlen(with);
	return n >= m && strcmp(s + n - m, with) == 0;
}

// skip skips spaces and comments.
static const char *skip(const char *p)
{
	for (;;) {
		p += strspn(p, " \t\r\n");
		if (strncmp(p, "//", 2) == 0)
			p += strcspn(p, "\n");
		else if (strncmp(p, "/*", 2) == 0 && strstr(p + 2, "*/"))
			p = strstr(p + 2, "*/") + 2;
		else
			return p;
	}
}

// is_main tests whether a source's package is main.
static int is_main(const char *text)
{
	const char *p = skip(text), *name;
	if (strncmp(p, "package", 7) != 0 || (name = skip(p + 7)) == p + 7 || strncmp(name, "main", 4) != 0)
		return 0;
	return name[4] == 0 || strchr(" \t\r\n;/", name[4]) != NULL;
}

// in_module tests whether a folder or one above it has a module or a workspace.
static int in_module(const char *dir)
{
	char path[MAX_PATH];
	for (size_t n = strlen(dir);; n--) {
		while (n > 0 && dir[n - 1] == '/')
			n--;
		static const char *const files[] = {"go.mod", "go.work"};
		for (int i = 0; i < 2; i++) {
			if (snprintf(path, sizeof path, "%.*s/%s", (int)n, dir, files[i]) >= (int)sizeof path || access(path, F_OK) == 0 || errno != ENOENT)
				return 1;
		}
		while (n > 0 && dir[n - 1] != '/')
			n--;
		if (n == 0)
			return 0;
	}
}

// has_gcc tests whether a list of folders has a C compiler, with which go would use cgo.
static int has_gcc(const char *folders)
{
	char path[MAX_PATH];
	for (const char *p = folders; *p;) {
		size_t n = strcspn(p, ":");
		if (snprintf(path, sizeof path, "%.*s/gcc", (int)n, n > 0 ? p : ".") >= (int)sizeof path || access(path, X_OK) == 0)
			return 1;
		p += n + (p[n] == ':');
	}
	return 0;
}

// plain tests whether the program depends on the file's text only, and neither the text nor the
// environment needs the go command.
static int plain(struct start *s, const char *text)
{
	// The go command must handle these: directives (without spaces), other files, C, byte order marks.
	static const char *const directives[] = {"//go:embed", "//go:debug", "//go:build", "//go:binary-only-package", "+build", "\"C\"", "`C`", "\xef\xbb\xbf", "#cgo"};
	static const char *const variables[] = {"GO", "CGO", "XDG_", "TMPDIR", "CC=", "CXX=", "AR=", "FC=", "PKG_CONFIG"};
	const char *file = s->argv[0];
	if (file[0] != '/' || !ends(file, ".go") || ends(file, "_test.go") || (s->argv[1] && ends(s->argv[1], ".go")))
		return 0;
	unsigned char first = (unsigned char)strrchr(file, '/')[1];
	if (!(isalnum(first) || first >= 0x80))  // go skips some of these names, and refuses others
		return 0;
	int home = 0;
	for (size_t i = 0; i < sizeof directives / sizeof *directives; i++)
		if (strstr(text, directives[i]))
			return 0;
	for (char **e = s->env; *e; e++) {
		for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
			if (strncmp(*e, variables[i], strlen(variables[i])) == 0)
				return 0;
		home |= strcmp(*e, "HOME=" HOME_DIR) == 0;
		if ((strncmp(*e, "PWD=", 4) == 0 && strcmp(*e + 4, s->cwd) != 0) || (strncmp(*e, "PATH=", 5) == 0 && has_gcc(*e + 5)))
			return 0;
	}
	char dir[MAX_PATH], real[MAX_PATH];
	if ((size_t)snprintf(dir, sizeof dir, "%s", file) >= sizeof dir || strpbrk(file, "\r\n") || getcwd(real, sizeof real) == NULL || strcmp(real, s->cwd) != 0)
		return 0;
	*strrchr(dir, '/') = 0;
	if (in_module(s->cwd) || in_module(dir))
		return 0;
	static const char *const files[] = {HOME_DIR "/.config/go/env", HOME_DIR "/go/go.mod"};
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		if (access(files[i], F_OK) == 0 || errno != ENOENT)
			return 0;
	return home && is_main(text);
}

// id makes a build id in Go's form from the text and the file's name.
static void id(char to[static 84], const char *file, const char *text)
{
	uint64_t sum = 0xcbf29ce484222325;  // FNV-1a
	const char *parts[] = {file, text};
	for (int i = 0; i < 2; i++)
		for (const char *p = parts[i]; *p; p++)
			sum = (sum ^ (unsigned char)*p) * 0x100000001b3;
	char part[21];
	snprintf(part, sizeof part, "%020llx", (unsigned long long)sum);
	snprintf(to, 84, "%s/%s/%s/%s", part, part, part, part);
}

// fill returns an argument with values in place of names.
static char *fill(const char *arg, const char *const names[], const char *const values[])
{
	char *to = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&to, &n);
	if (f == NULL)
		return NULL;
	while (*arg) {
		int i = 0;
		while (names[i] && strncmp(arg, names[i], strlen(names[i])) != 0)
			i++;
		fputs(names[i] ? values[i] : (char[]){*arg, 0}, f);
		arg += names[i] ? strlen(names[i]) : 1;
	}
	return fclose(f) == 0 ? to : NULL;
}

// tool runs one of Go's tools, with its output in a file. The tool does not get the control channel,
// because it reads the text of hostile code.
static int tool(char **argv, char **env, const char *said)
{
	int status = -1;
	pid_t pid = vfork();
	if (pid == 0) {
		int in = open("/dev/null", O_RDONLY), out = open(said, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		if (in < 0 || out < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
			_exit(EXIT_UNKNOWN);
		close(start_ctl);
		close(in);
		close(out);
		signal(SIGPIPE, SIG_DFL);
		execve(argv[0], argv, env);
		_exit(EXIT_NO_EXEC);
	}
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return pid > 0 ? status : -1;
}

// of_types tests whether the compiler's message is about code that the compiler could parse. go run
// prints such messages unchanged. It reports malformed headers itself, in other words.
static int of_types(const char *message)
{
	static const char *const begins[] = {
		"undefined: ", "declared and not used: ", "cannot ", "invalid operation: ", "invalid argument: ", "invalid recursive type", "missing return", "missing argument",
		"not enough ", "too many arguments", "too many return values", "assignment mismatch: ", "no new variables on left side of :=", "unknown field ", "impossible type ",
		"duplicate case ", "duplicate key ", "duplicate field ", "duplicate method ", "initialization cycle", "label ", "first argument to ",
		"mixture of field:value", "constant ", "in call to ", "undeclared ", "use of package ", "break is not in ", "continue is not in ",
	};
	static const char *const holds[] = {
		" redeclared in this block", " undefined (", " is not a type", " used as value", " does not implement ", " does not satisfy ", " is not used", " (type) is not an expression",
		" already declared at ", " is not constant",
	};
	if (strncmp(message, "syntax error", strlen("syntax error")) == 0)  // quotes the code, so it may contain any of these
		return 0;
	for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
		if (strncmp(message, begins[i], strlen(begins[i])) == 0)
			return 1;
	for (size_t i = 0; i < sizeof holds / sizeof *holds; i++)
		if (strstr(message, holds[i]))
			return 1;
	return strstr(message, " imported ") && ends(message, " and not used");
}

// behind returns the text after FILE:LINE:COLUMN: in a line, or NULL.
static const char *behind(const char *line, const char *file)
{
	size_t n = strlen(file);
	if (strncmp(line, file, n) != 0)
		return NULL;
	for (int i = 0; i < 2; i++) {
		size_t digits = line[n] == ':' ? strspn(line + n + 1, "0123456789") : 0;
		if (digits == 0)
			return NULL;
		n += 1 + digits;
	}
	return strncmp(line + n, ": ", 2) == 0 ? line + n + 2 : NULL;
}

// as_go returns the compiler's output about the code in the form that go run prints, or NULL if
// that form may differ. go run shortens paths, and interprets anything that looks like a position
// in cgo's files.
static char *as_go(struct start *s, char *said)
{
	static const char *const changed[] = {"/tmp/", ".cgo1.go:", ".cover.go:"};
	const char *file = s->argv[0];
	size_t dir = (size_t)(strrchr(file, '/') - file), top = 1 + strcspn(file + 1, "/"), cwd = strlen(s->cwd), cwd_top = 1 + strcspn(s->cwd + 1, "/"), n = 0;
	char *told = NULL, *line;
	// go run prints a path relative to the working folder if the relative path is shorter. It is never
	// shorter if the two paths differ in their first folder.
	int inside = cwd == dir && strncmp(s->cwd, file, dir) == 0, away = cwd > 1 && (cwd_top != top || strncmp(s->cwd, file, top) != 0);
	if (dir == 0 || (!inside && !away) || *said == 0 || !ends(said, "\n"))
		return NULL;
	FILE *f = open_memstream(&told, &n);
	if (f == NULL)
		return NULL;
	fputs("# command-line-arguments\n", f);
	said[strlen(said) - 1] = 0;
	while ((line = strsep(&said, "\n")) != NULL) {
		int more = *line == '\t';
		const char *rest = line + more, *message = behind(rest, file);
		if (message) {
			fprintf(f, "%s%s%s\n", more ? "\t" : "", inside ? "." : "", rest + (inside ? dir : 0));
			rest = message;
		} else if (more) {
			fprintf(f, "%s\n", line);
		} else {
			return NULL;
		}
		if ((message && !more && !of_types(message)) || memmem(rest, strlen(rest), file, top))
			return NULL;
		for (size_t i = 0; i < sizeof changed / sizeof *changed; i++)
			if (strstr(rest, changed[i]))
				return NULL;
	}
	return fclose(f) == 0 ? told : NULL;
}

// arguments reads the lines of a command, and advances past it.
static char **arguments(char **commands, const char *const names[], const char *const values[])
{
	size_t n = 0;
	for (char *p = *commands; *p && *p != '\n'; n++) {
		p += strcspn(p, "\n");
		p += *p == '\n';
	}
	char **argv = calloc(n + 1, sizeof *argv);
	for (size_t i = 0; argv && i < n; i++) {
		char *line = *commands, *end = line + strcspn(line, "\n");
		*commands = end + (*end == '\n');
		*end = 0;
		if ((argv[i] = fill(line, names, values)) == NULL)
			return NULL;
	}
	*commands += **commands == '\n';
	return argv;
}

// make compiles and links, and returns whether there is a program now. told gets compiler output that
// go run would print.
static int make(struct start *s, const char *text, char *commands, const char *work, const char *name, char **told)
{
	static char *environment[] = {"GOROOT=" GO_ROOT, "HOME=" HOME_DIR, "PATH=" GO_BIN ":" SEARCH_PATH, NULL};
	char said[MAX_PATH], own_id[84], cores[32], *none[] = {NULL}, *more[] = {NULL, NULL};
	const char *const names[] = {"$WORK", "$FILE", "$NAME", "$ID", NULL}, *const values[] = {work, s->argv[0], name, own_id};
	id(own_id, s->argv[0], text);
	snprintf(said, sizeof said, "%s/b001/said", work);
	char **compile = arguments(&commands, names, values), **link = arguments(&commands, names, values), *words;
	if (compile == NULL || link == NULL || compile[0] == NULL || link[0] == NULL)
		return 0;
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 1) {
		snprintf(cores, sizeof cores, "-c=%d", CPU_COUNT(&set));
		more[0] = cores;
	}
	compile = start_join(compile[0], more[0] ? more : none, compile + 1);
	int status = tool(compile, environment, said);
	if ((words = read_file(said, MAX_SAID)) != NULL && WIFEXITED(status) && status != 0)
		*told = as_go(s, words);
	if (status != 0 || words == NULL || *words)  // go also prints warnings
		return 0;
	status = tool(link, environment, said);
	words = read_file(said, MAX_SAID);
	unlink(said);
	return status == 0 && words && *words == 0;
}

// work_folder makes a folder with a name like go run's.
static int work_folder(char *to, size_t size)
{
	for (int tries = 0; tries < 100; tries++) {
		uint32_t n;
		if (getrandom(&n, sizeof n, 0) != sizeof n)
			return -1;
		snprintf(to, size, GO_WORK "%u", n);
		if (mkdir(to, 0700) == 0)
			return 0;
		if (errno != EEXIST)
			return -1;
	}
	return -1;
}

char *build(struct start *s)
{
	char *text = read_file(s->argv[0], MAX_TEXT), *commands = text && plain(s, text) ? read_file(COMMANDS, MAX_DIRECT) : NULL;
	char work[sizeof GO_WORK + 16], path[MAX_PATH], *name;
	if (commands == NULL || (name = strdup(strrchr(s->argv[0], '/') + 1)) == NULL || work_folder(work, sizeof work) < 0)
		return NULL;
	name[strlen(name) - strlen(".go")] = 0;
	static const char *const dirs[] = {"b001", "b001/exe"};
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s/%s", work, dirs[i]);
		mkdir(path, 0755);
	}
	snprintf(path, sizeof path, "%s/b001/exe/%s", work, name);
	char *told = NULL;
	if (make(s, text, commands, work, name, &told))
		return strdup(path);
	build_drop(path);
	if (told) {
		dprintf(STDERR_FILENO, "%s", told);
		_exit(1);
	}
	return NULL;
}

void build_drop(const char *program)
{
	char dir[MAX_PATH], path[MAX_PATH + 16];
	snprintf(dir, sizeof dir, "%s", program);
	unlink(dir);
	for (int above = 0; above < 3; above++) {  // exe, b001, and their parent
		*strrchr(dir, '/') = 0;
		static const char *const files[] = {"_pkg_.a", "said"};
		for (int i = 0; i < 2 && above == 1; i++) {
			snprintf(path, sizeof path, "%s/%s", dir, files[i]);
			unlink(path);
		}
		rmdir(dir);
	}
}
