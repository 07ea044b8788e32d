package jail

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// moreCalls are those that arm64 has beside the ones that every architecture has.
var moreCalls = []uintptr{unix.SYS_NEWFSTATAT}

func moreConditionals(uint32) []conditional { return nil }

// opens reports whether a call opens a file.
func opens(call int) bool { return call == unix.SYS_OPENAT }
