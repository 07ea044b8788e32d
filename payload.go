package unitask

import (
	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/node"
	"github.com/unitask/unitask/image"
)

// nodePayload is Node as images want it.
func nodePayload() image.Payload {
	return image.Payload{
		Sources: guest.Sources, Parts: node.Parts, Program: node.Program, Args: node.Args, NanosArgs: node.NanosArgs, Env: node.Env,
		Library: node.Library, LibrarySources: node.LibrarySources, Files: node.Files(),
	}
}
