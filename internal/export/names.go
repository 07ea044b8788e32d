package export

import "strings"

// moreNames are further names for runNames.
const moreNames = `
	makefile.* cargo.* go.* package.* pnpmfile.* pipfile.* rakefile.* gems.* project.pbxproj gnumakefile.*
	bsdmakefile.* dockerfile.* containerfile.* mise.* cmakeuserpresets.json ctestconfig.cmake ctesttestfile.cmake
	meson.options meson_options.txt configure.* build.ninja sconscript sconscript.py sconstruct.py tupfile tupfile.*
	jamfile jamroot premake5.lua xmake.lua build.mill build.sc pants.toml workspace.bzlmod targets buck.v2 dune
	dune-project dune-workspace dub.json dub.sdl nim.cfg shard.yml spago.yaml gleam.toml v.mod alire.toml fpm.toml
	elm.json hie.yaml cabal.project.* cabal.project rebar.* mix.lock __init__.py __main__.py __init__.* pytest.*
	mypy.ini pylintrc pylintrc.toml ruff.toml uv.toml uv.lock poetry.toml poetry.lock pdm.toml pdm.lock pixi.toml
	pixi.lock hatch.toml pyvenv.cfg manage.py locustfile.py pavement.py alembic.ini dvc.yaml mkdocs.yml mkdocs.yaml
	ipython_config.* ipython_kernel_config.* jupyter_config.* jupyter_notebook_config.* jupyter_server_config.*
	jupyter_lab_config.* nose.cfg unittest.cfg ansible.cfg startup.m cpanfile dist.ini phpunit.* phpstan.* psalm.*
	rector.php ecs.php artisan capfile berksfile podfile cartfile appfile matchfile puppetfile thorfile steepfile
	angular.json ember-cli-build.js nest-cli.json project.json workspace.json rush.json jsr.json import_map.json
	deno.lock serverless.* wrangler.* now.json biome.json biome.jsonc tslint.json cdk.json samconfig.toml
	skaffold.yaml helmfile.yaml kustomization.* kustomization pulumi.yaml terragrunt.hcl terraform.* dagger.json
	local.properties gradle-wrapper.properties libs.versions.toml extensions.xml analysis_options.yaml
	pubspec_overrides.yaml pubspec.lock melos.yaml build.yaml dotnet-tools.json packages.config launchsettings.json
	omnisharp.json psakefile.ps1 compile_commands.json compile_flags.txt cross.toml clippy.toml rustfmt.toml
	web.config _fossil_ _targets.r project.toml manifest.toml localpreferences.toml devcontainer.json crush.* iflow.md
	codebuddy.md grok.md opencode.md jules.md replit.md gemini-extension.json ormconfig.* knexfile.* nodemon.json
	nextflow.config truffle-config.js truffle.js foundry.toml lefthook-local.* procfile.* process-compose.* mkfile
	kbuild setup.lhs gradle-wrapper.jar runtime.exs conanfile.* vcpkg.json devenv.* gatsby-config.* gatsby-node.*
	gatsby-browser.* gatsby-ssr.* middleware.js middleware.ts instrumentation.js instrumentation.ts wsgi.py
	celeryconfig.py gunicorn.conf.py scrapy.cfg luigi.cfg invoke.* fabric.* buildout.cfg conf.py book.toml latexmkrc
	wp-cli.yml robofile.php castor.php deploy.php phinx.* grumphp.* irbrc irb.rc _irbrc _vimrc _gvimrc _exrc cask eask
	eldev repo.bazel build.gn spec_helper.rb rails_helper.rb test_helper.rb test_helper.exs premake4.lua`

// runTests are endings of tests, which tools find by their names.
var runTests = strings.Fields(`
	_test.py _test.go _test.rb _spec.rb .test.js .test.jsx .test.ts .test.tsx .test.mjs .test.cjs .test.mts
	.test.cts .spec.js .spec.jsx .spec.ts .spec.tsx .spec.mjs .spec.cjs .spec.mts .spec.cts _test.exs _test.dart
	test.php tests.php test.java tests.java it.java test.kt tests.kt test.scala spec.scala test.cs tests.cs
	tests.swift
`)

// testedEndings are endings of tests whose names begin with test_.
var testedEndings = strings.Fields(".py .rb .exs .js .mjs .cjs .ts .lua .pl")

// pythonModules are the modules of Python's own library, in lower case, of versions 3.11 to 3.14
// (sys.stdlib_module_names). A program imports a module with such a name in its own folder instead. Python's own
// modules import those with an underscore.
var pythonModules = set(`
	__future__ __hello__ __phello__ _abc _aix_support _android_support _apple_support _ast _ast_unparse _asyncio
	_bisect _blake2 _bootlocale _bootsubprocess _bz2 _codecs _codecs_cn _codecs_hk _codecs_iso2022 _codecs_jp
	_codecs_kr _codecs_tw _collections _collections_abc _colorize _compat_pickle _compression _contextvars _crypt _csv
	_ctypes _curses _curses_panel _datetime _dbm _decimal _distutils_hack _dummy_thread _elementtree _frozen_importlib
	_frozen_importlib_external _functools _gdbm _hashlib _heapq _hmac _imp _interpchannels _interpqueues
	_interpreterpool _interpreters _io _ios_support _json _locale _lsprof _lzma _markupbase _md5 _msi _multibytecodec
	_multiprocessing _opcode _opcode_metadata _operator _osx_support _overlapped _pickle _posixshmem _posixsubprocess
	_py_abc _py_warnings _pydatetime _pydecimal _pyio _pylong _pyrepl _queue _random _remote_debugging _scproxy _sha1
	_sha2 _sha256 _sha3 _sha512 _signal _sitebuiltins _socket _sqlite3 _sre _ssl _stat _statistics _string _strptime
	_struct _suggestions _symtable _sysconfig _sysconfigdata _testcapi _testinternalcapi _thread _threading_local
	_tkinter _tokenize _tracemalloc _types _typing _uuid _warnings _weakref _weakrefset _winapi _xxinterpchannels
	_xxsubinterpreters _zoneinfo _zstd abc aifc annotationlib antigravity argparse array ast asynchat asyncio asyncore
	atexit audioop base64 bdb binascii binhex bisect builtins bz2 calendar cgi cgitb chunk cmath cmd code codecs
	codeop collections colorsys compileall compression concurrent configparser contextlib contextvars copy copyreg
	cprofile crypt csv ctypes curses dataclasses datetime dbm decimal difflib dis distutils doctest dummy_threading
	email encodings ensurepip enum errno faulthandler fcntl filecmp fileinput fnmatch formatter fractions ftplib
	functools gc genericpath getopt getpass gettext glob graphlib grp gzip hashlib heapq hmac html http idlelib
	imaplib imghdr imp importlib inspect io ipaddress itertools json keyword lib2to3 linecache locale logging lzma
	macpath macurl2path mailbox mailcap marshal math mimetypes mmap modulefinder msilib msvcrt multiprocessing netrc
	nis nntplib nt ntpath nturl2path numbers opcode operator optparse os ossaudiodev parser pathlib pdb pickle
	pickletools pipes pkgutil platform plistlib poplib posix posixpath pprint profile pstats pty pwd py_compile pyclbr
	pydoc pydoc_data pyexpat queue quopri random re readline reprlib resource rlcompleter runpy sched secrets select
	selectors shelve shlex shutil signal site smtpd smtplib sndhdr socket socketserver spwd sqlite3 sre_compile
	sre_constants sre_parse ssl stat statistics string stringprep struct subprocess sunau symbol symtable sys
	sysconfig syslog tabnanny tarfile telnetlib tempfile termios textwrap this threading time timeit tkinter token
	tokenize tomllib trace traceback tracemalloc tty turtle turtledemo types typing unicodedata unittest urllib uu
	uuid venv warnings wave weakref webbrowser winreg winsound wsgiref xdrlib xml xmlrpc zipapp zipfile zipimport zlib
	zoneinfo`)

// pythonEndings are endings of files that Python imports.
var pythonEndings = strings.Fields(".py .pyw .so .pyd")

// shadows reports whether Python imports a file, given by its folded name, instead of a module of its own library.
func shadows(base string) bool {
	stem, _, _ := strings.Cut(base, ".")
	return (pythonModules[stem] || strings.HasPrefix(stem, "_sysconfigdata_")) && hasEnding(base, pythonEndings)
}

func hasEnding(base string, endings []string) bool {
	for _, ending := range endings {
		if strings.HasSuffix(base, ending) && base != ending {
			return true
		}
	}
	return false
}

// folds are the characters that file systems treat as letters in another case, and strings.ToLower does not.
var folds = strings.NewReplacer("\u017f", "s", "\u00df", "ss", "\u1e9e", "ss", "\ufb00", "ff", "\ufb01", "fi", "\ufb02",
	"fl", "\ufb03", "ffi", "\ufb04", "ffl",
	"\ufb05", "st", "\ufb06", "st")

// fold returns a part of a path in the form that some file systems compare. It has no case, no streams of NTFS, and
// none of the characters that Windows drops at a name's end.
func fold(part string) string {
	part, _, _ = strings.Cut(part, ":")
	return folds.Replace(strings.ToLower(strings.TrimRight(part, ". ")))
}
