// Package container is the guest's part in a machine that runs a container's image. It knows neither images nor
// machines; unitask passes its values to them.
package container

import "github.com/unitask/unitask/guest/contract"

// Program waits in a machine for the command, and then becomes the command. It is not in the image's root.
const Program = "/unitask/lib/start"

// ProgramSources are compiled into Program; they are in guest.Sources.
var ProgramSources = []string{"container/program/container.c", "start/start.c"}

// Args is Program's command line, its own name included.
var Args = []string{"start"}

// Env is the environment of Program's start; the command has its own.
var Env = []string{"PATH=" + contract.SearchPath}

// Rehearsal is a text that nothing reads: a rehearsal ends where a command would start.
const Rehearsal = "\n"
