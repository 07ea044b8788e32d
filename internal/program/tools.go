package program

import (
	"io/fs"
	"path"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/node"
	"github.com/unitask/unitask/guest/tools"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/policy"
)

// AddTools puts the clients of tools, and the types, into the guest.
func (p *Program) AddTools(list []tools.File, runtime string) {
	p.Tools = nil
	for _, f := range list {
		file := TextFile(f.Path, f.Text)
		if f.Program {
			file.Mode = 0o755
		}
		p.Tools = append(p.Tools, file)
	}
	link := func(at, to string) {
		p.Tools = append(p.Tools, File{guest.File{Path: at, Mode: fs.ModeSymlink, Target: to}, ""})
	}
	link(node.Installed+"/unitask-tools.mjs", tools.Node)
	link("/usr/local/bin/unitask-tool", tools.Command)
	if of := p.Language.Packages; p.inImage == nil && of != nil && of.System == policy.Pip {
		link(path.Join(image.At(of.Place, runtime), "unitask_tools"), tools.Python)
	}
}

// toolsEnv sets the variables by which clients find the service. An interpreter that a run starts anew finds the
// clients by its own variables.
func (p *Program) toolsEnv(env map[string]string) {
	if p.Tools == nil {
		return
	}
	env[tools.Env] = tools.URL
	if p.inImage == nil && p.Supervisor == nil {
		return
	}
	if _, set := env["PYTHONPATH"]; !set {
		env["PYTHONPATH"] = path.Dir(tools.Python)
	}
	if _, set := env["NODE_OPTIONS"]; !set {
		env["NODE_OPTIONS"] = "--import=" + tools.NodeHook
	}
}
