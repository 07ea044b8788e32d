package changes

import "golang.org/x/sys/unix"

// noAttribute is the error of a file without an extended attribute.
const noAttribute = unix.ENODATA
