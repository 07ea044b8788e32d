package cli

import "runtime/debug"

// released is the version of a release: hack/dist sets it.
var released string

// version returns the release's version, or the module's as the Go toolchain recorded it.
func version() string {
	if released != "" {
		return released
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
