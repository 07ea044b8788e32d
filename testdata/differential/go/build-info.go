package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
)

func main() {
	info, ok := debug.ReadBuildInfo()
	fmt.Println(ok, runtime.Version())
	fmt.Print(info)
	_, file, line, _ := runtime.Caller(0)
	fmt.Println(filepath.Base(file), filepath.IsAbs(file), line)
	self, err := os.Executable()
	fmt.Println(regexp.MustCompile(`^/.*/go-build[0-9]+/b001/exe/build-info$`).MatchString(self), err, self == os.Args[0])
	fmt.Println(strings.HasSuffix(strings.Split(os.Getenv("PATH"), ":")[0], "/bin"))
}
