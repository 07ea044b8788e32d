package image

import "os"

// punch would give back the room that a part of a file takes.
func punch(*os.File, int64, int64) {}
