package export

import "strings"

// moreNames are further files that tools run or obey, as runNames has them.
const moreNames = `
	makefile.* cargo.* go.* package.* pnpmfile.* pipfile.* rakefile.* gems.* project.pbxproj gnumakefile.* bsdmakefile.* dockerfile.* containerfile.* mise.*
	cmakeuserpresets.json ctestconfig.cmake ctesttestfile.cmake meson.options meson_options.txt configure.* build.ninja sconscript sconscript.py sconstruct.py
	tupfile tupfile.* jamfile jamroot premake5.lua xmake.lua build.mill build.sc pants.toml workspace.bzlmod targets buck.v2 dune dune-project dune-workspace
	dub.json dub.sdl nim.cfg shard.yml spago.yaml gleam.toml v.mod alire.toml fpm.toml elm.json hie.yaml cabal.project.* cabal.project rebar.* mix.lock
	__init__.py __main__.py __init__.* pytest.* mypy.ini pylintrc pylintrc.toml ruff.toml uv.toml uv.lock poetry.toml poetry.lock pdm.toml pdm.lock pixi.toml
	pixi.lock hatch.toml pyvenv.cfg manage.py locustfile.py pavement.py alembic.ini dvc.yaml mkdocs.yml mkdocs.yaml ipython_config.* ipython_kernel_config.*
	jupyter_config.* jupyter_notebook_config.* jupyter_server_config.* jupyter_lab_config.* nose.cfg unittest.cfg ansible.cfg startup.m cpanfile dist.ini
	phpunit.* phpstan.* psalm.* rector.php ecs.php artisan capfile berksfile podfile cartfile appfile matchfile puppetfile thorfile steepfile
	angular.json ember-cli-build.js nest-cli.json project.json workspace.json rush.json jsr.json import_map.json deno.lock serverless.* wrangler.* now.json
	biome.json biome.jsonc tslint.json cdk.json samconfig.toml skaffold.yaml helmfile.yaml kustomization.* kustomization pulumi.yaml terragrunt.hcl terraform.* dagger.json
	local.properties gradle-wrapper.properties libs.versions.toml extensions.xml analysis_options.yaml pubspec_overrides.yaml pubspec.lock melos.yaml build.yaml
	dotnet-tools.json packages.config launchsettings.json omnisharp.json psakefile.ps1 compile_commands.json compile_flags.txt cross.toml clippy.toml
	rustfmt.toml web.config _fossil_ _targets.r project.toml manifest.toml localpreferences.toml devcontainer.json
	crush.* iflow.md codebuddy.md grok.md opencode.md jules.md replit.md gemini-extension.json`

// runTests are the endings of tests, which tools find by their names.
var runTests = strings.Fields(`_test.py _test.go _test.rb _spec.rb .test.js .test.jsx .test.ts .test.tsx .test.mjs .test.cjs .test.mts .test.cts
	.spec.js .spec.jsx .spec.ts .spec.tsx .spec.mjs .spec.cjs .spec.mts .spec.cts`)

// pythonModules are those of Python's own library: a program takes one that lies beside it in their place.
var pythonModules = set(`
	abc aifc argparse array ast asynchat asyncio asyncore atexit audioop base64 bdb binascii bisect builtins bz2 cProfile calendar cgi cgitb chunk cmath
	cmd code codecs codeop collections colorsys compileall concurrent configparser contextlib contextvars copy copyreg crypt csv ctypes curses dataclasses
	datetime dbm decimal difflib dis distutils doctest email encodings ensurepip enum errno faulthandler fcntl filecmp fileinput fnmatch fractions ftplib
	functools gc genericpath getopt getpass gettext glob graphlib grp gzip hashlib heapq hmac html http idlelib imaplib imghdr imp importlib inspect io
	ipaddress itertools json keyword lib2to3 linecache locale logging lzma mailbox mailcap marshal math mimetypes mmap modulefinder msilib msvcrt
	multiprocessing netrc nis nntplib nt ntpath nturl2path numbers opcode operator optparse os ossaudiodev pathlib pdb pickle pickletools pipes pkgutil
	platform plistlib poplib posix posixpath pprint profile pstats pty pwd py_compile pyclbr pydoc pydoc_data pyexpat queue quopri random re readline
	reprlib resource rlcompleter runpy sched secrets select selectors shelve shlex shutil signal site smtpd smtplib sndhdr socket socketserver spwd
	sqlite3 sre_compile sre_constants sre_parse ssl stat statistics string stringprep struct subprocess sunau symtable sys sysconfig syslog tabnanny
	tarfile telnetlib tempfile termios textwrap threading time timeit tkinter token tokenize tomllib trace traceback tracemalloc tty turtle turtledemo
	types typing unicodedata unittest urllib uu uuid venv warnings wave weakref webbrowser winreg winsound wsgiref xdrlib xml xmlrpc zipapp zipfile
	zipimport zlib zoneinfo`)

// pythonEndings are those of what Python imports.
var pythonEndings = strings.Fields(".py .pyw .so .pyd")

// shadows says that Python imports a file, by its folded name, in the place of its own library's.
func shadows(base string) bool {
	stem, _, _ := strings.Cut(base, ".")
	return pythonModules[stem] && hasEnding(base, pythonEndings)
}

func hasEnding(base string, endings []string) bool {
	for _, ending := range endings {
		if strings.HasSuffix(base, ending) && base != ending {
			return true
		}
	}
	return false
}

// folds are the characters that file systems take for letters in another case, and strings.ToLower does not.
var folds = strings.NewReplacer("\u017f", "s", "\u00df", "ss", "\u1e9e", "ss", "\ufb00", "ff", "\ufb01", "fi", "\ufb02", "fl", "\ufb03", "ffi", "\ufb04", "ffl",
	"\ufb05", "st", "\ufb06", "st")

// fold is a part of a path as a file system may take it that ignores case, what ends a name on Windows, and streams of NTFS.
func fold(part string) string {
	part, _, _ = strings.Cut(part, ":")
	return folds.Replace(strings.ToLower(strings.TrimRight(part, ". ")))
}
