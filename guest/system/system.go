// Package system lists the parts of a usual Debian system in the images of Node, Python and Bash. They are the
// libraries that compiled packages expect, a locale, and the commands that scripts call. It knows no language.
package system

// Libraries are the vendored parts that a wheel may expect of the system. They are the list shared by the manylinux
// policies (PEP 600), as in auditwheel, and their own dependencies. libgomp is not in that list, but wheels use it.
var Libraries = []string{
	"libc", "libmvec", "libgcc", "libstdc++", "libatomic1", "libgomp1", "zlib1g", "libexpat1",
	"libglib2.0-0", "libpcre2-8-0", "libffi8", "libmount1", "libblkid1", "libselinux1",
	"libx11-6", "libxext6", "libxrender1", "libice6", "libsm6", "libxcb1", "libxau6", "libxdmcp6", "libbsd0", "libmd0",
	"libuuid1",
	"libgl1", "libglvnd0", "libglx0",
}

// Commands are the vendored parts with commands for scripts, and with the locale C.UTF-8 (libc-bin). Busybox has the
// rest. Its sh, env, xargs and find would start Busybox's ps instead of the installed one, so these commands are
// included, too.
var Commands = []string{
	"libc-bin", "coreutils", "findutils", "procps", "util-linux", "bsdutils", "bsdextrautils", "dash", "less", "tree",
	"xz-utils", "ncurses-bin", "ncurses-base",
	"libproc2-0", "libsystemd0", "libcap2", "liblz4-1", "libxxhash0", "libssl3", "libgcrypt20", "libgpg-error0",
	"libzstd1", "liblzma5",
	"libsmartcols1", "libcap-ng0", "libudev1", "libncursesw6", "libtinfo6", "libcrypt1",
	"libacl1", "libattr1", "libgmp10",
}

// Folders are the folders with many files.
var Folders = []string{"/usr/bin"}

// Only lists parts that exist for a single architecture.
var Only = map[string]string{"libmvec": "amd64"}
