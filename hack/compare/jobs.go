package main

import (
	"embed"
	"io/fs"
)

//go:embed jobs
var embedded embed.FS

// files are the programs of the jobs, and what drives systems that have no command line.
func files() fs.FS {
	sub, err := fs.Sub(embedded, "jobs")
	if err != nil {
		panic(err) // the folder is embedded
	}
	return sub
}

// job is one thing to do. Its script on each system prints the output so many times.
type job struct {
	name, title, output string
	times               int
}

var jobs = []job{
	{"hello", "hello in Python", "hello 42", 1},
	{"data", "pandas, 1000 rows", "rows 1000 groups 7", 1},
	{"package", "install and use a package", "forty-two", 1},
	{"session", "20 commands in one session", "step 42", 20},
	{"many", "50 hellos at once", "hello 42", 50},
}
