package machine

import "os"

// CanClone is false: clones need memfd, which only Linux has.
const CanClone = false

func NewMemory(int64) (*os.File, error) { return nil, errNoMemfd }
func SealMemory(*os.File) error         { return errNoMemfd }
func CopyMemory(_, _ *os.File) error    { return errNoMemfd }

func copyPrivate(_, _ *os.File, _ int) error { return errNoMemfd }
func digestMemory(*os.File) (string, error)  { return "", errNoMemfd }

func processor() string { return "" }

func renameExchange(_, _ string) error { return errNoMemfd }

func changeTime(st os.FileInfo) int64 { return st.ModTime().UnixNano() }
