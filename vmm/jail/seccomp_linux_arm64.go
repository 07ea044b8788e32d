package jail

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// moreCalls are arm64's calls in addition to those of every architecture.
var moreCalls = []uintptr{unix.SYS_NEWFSTATAT}

func moreConditionals(uint32) []conditional { return nil }

// opens reports whether a call opens a file.
func opens(call int) bool { return call == unix.SYS_OPENAT }
