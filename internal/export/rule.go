// Package export copies all files that leave a machine for a user's folder: artifacts (--out), and files and folders of
// sessions. Untrusted code chose their names, contents and modes. So one rule decides which files are allowed (Barred,
// RunByTools), and every file is complete or does not exist. The package never replaces a file without a request, never
// follows a link and never sets an executable bit.
//
// Packages record, hostfiles, changes, project, session and cli call it.
package export

import (
	"fmt"
	"path"
	"strings"

	"github.com/unitask/unitask/internal/unseen"
)

// Left is a file that was not exported.
type Left struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// MaxLeft bounds the list of files that were not exported; the last entry of a longer list gives the number of the
// others.
const MaxLeft = 100

// Barred returns why a file with that path (with slashes) is not exported; "" if it may be. Programs read files with
// such names unasked (.git/hooks, .envrc, .mcp.json), or the name looks like another one.
func Barred(name string) string {
	for part := range strings.SplitSeq(name, "/") {
		// HFS+ ignores characters without width: it treats U+200C followed by ".git" as ".git" (git's CVE-2014-9390).
		seen := strings.TrimLeftFunc(part, unseen.Is)
		switch {
		case strings.HasPrefix(seen, "."):
			return "a name that begins with a dot is not copied"
		// GIT~1 is .git, and so is "GIT~1.....": NTFS drops dots and blanks at a name's end
		case shortName(strings.TrimRight(strings.SplitN(seen, ":", 2)[0], ". ")):
			return "a name of the form NAME~1, which FAT and NTFS give to other files too, is not copied"
		case fold(seen) == "head":
			return "the name HEAD is not copied: " +
				"git takes a folder with it for a repository, and runs what its configuration says"
		case strings.ContainsFunc(part, unseen.Is):
			return fmt.Sprintf("a name with a character that can't be seen or changes how a line is read (%+q) is not copied",
				part)
		case strings.HasPrefix(part, "-"):
			return "a name that begins with - is not copied: programs take it for an option"
		case strings.TrimSpace(part) != part:
			return "a name that begins or ends with a blank is not copied"
		}
	}
	return ""
}

// shortName reports whether a name has the form of short names in FAT and NTFS. They have up to eight characters that
// end in ~ and a digit, and an extension of up to three.
func shortName(name string) bool {
	stem, ext, _ := strings.Cut(name, ".")
	head, digits, ok := strings.Cut(stem, "~")
	return ok && head != "" && digits != "" && strings.Trim(digits, "0123456789") == "" && len(stem) <= 8 && len(ext) <= 3
}

// HeldBack is the reason for not copying a file that tools run.
const HeldBack = "tools run a file of that name because it is there: only a new or empty folder gets it"

// RunByTools reports whether a tool runs or obeys a file of that path because it is in the folder. Examples are
// GNUmakefile (make), sitecustomize.py (Python) and CLAUDE.md (coding agents). Among a user's own files, a tool would
// run it although nobody asked for that.
func RunByTools(name string) bool {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = fold(part)
	}
	for _, dir := range parts[:len(parts)-1] {
		if runFolders[dir] {
			return true
		}
	}
	base := parts[len(parts)-1]
	stem, _, _ := strings.Cut(base, ".")
	if runNames[base] || runNames[stem+".*"] || runNames[strings.TrimSuffix(base, path.Ext(base))+".*"] {
		return true
	}
	if strings.HasPrefix(base, "test_") && hasEnding(base, testedEndings) || shadows(base) {
		return true
	}
	return hasEnding(base, runEndings) || hasEnding(base, runTests)
}

// runFolders are folders whose contents tools run.
var runFolders = set(
	"node_modules __pycache__ hooks buildsrc magefiles rakelib vendor __mocks__ __tests__ _darcs cvs callback_plugins " +
		"filter_plugins initializers _plugins")

// runEndings are endings of files that tools run, whatever the rest of their names is.
var runEndings = strings.Fields(`
	.pth .pyc .gemspec .podspec .cabal .csproj .fsproj .vbproj .vcxproj .sln .slnx .targets .props .mk .mak
	.desktop .lnk .url .webloc .command .tf .nix .code-workspace .tf.json .tofu .tfvars .tfvars.json .gradle
	.gradle.kts .gradle.dcl .sbt .cmake .bzl .rake .rsp .syso .nims .nimble .iml .ipr .gn .gni .gyp .gypi .do .tup
	.pro .pri .proj .user .conf.js .conf.cjs .conf.mjs .conf.ts .config.js .config.cjs .config.mjs .config.ts
	.config.mts .config.cts .config.json
`)

// runNames are names of files, in lower case; .* stands for any ending.
var runNames = set(`
	makefile gnumakefile bsdmakefile justfile taskfile.* rakefile gulpfile.* gruntfile.* jakefile.* cakefile
	earthfile tiltfile snakefile procfile brewfile vagrantfile dockerfile containerfile compose.* docker-compose.*
	docker-bake.* jenkinsfile pipfile guardfile fastfile dangerfile magefile.go dodo.py fabfile.py tasks.py
	noxfile.py tox.ini pytest.ini setup.py setup.cfg pyproject.toml conftest.py sitecustomize.py usercustomize.py
	sconstruct wscript meson.build cmakelists.txt cmakepresets.json configure build build.bazel build.bat
	workspace workspace.bazel module.bazel buck package.json npm-shrinkwrap.json package-lock.json yarn.lock
	pnpm-lock.yaml pnpm-workspace.yaml pnpmfile.* lerna.json turbo.json nx.json deno.json deno.jsonc bunfig.toml
	binding.gyp jsconfig.json tsconfig.json build.rs cargo.toml rust-toolchain rust-toolchain.toml go.mod go.work
	pom.xml build.xml build.gradle build.gradle.kts settings.gradle settings.gradle.kts gradlew gradlew.bat
	gradle.properties mvnw mvnw.cmd build.sbt project.clj deps.edn build.zig build.zig.zon mix.exs rebar.config
	stack.yaml setup.hs package.swift pubspec.yaml gemfile gemfile.lock config.ru composer.json build.pl
	makefile.pl flake.lock devbox.json mise.toml lefthook.yml lefthook.yaml nuget.config global.json appveyor.yml
	azure-pipelines.yml bitbucket-pipelines.yml cloudbuild.yaml netlify.toml vercel.json wrangler.toml fly.toml
	claude.md claude.local.md agents.md agents.override.md agent.md gemini.md qwen.md warp.md codex.md skill.md
	conventions.md copilot-instructions.md opencode.json opencode.jsonc crush.json mcp.json
	claude_desktop_config.json autorun.inf desktop.ini unitask.toml
` + moreNames)

func set(words string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(words) {
		m[w] = true
	}
	return m
}
