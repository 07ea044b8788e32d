package program

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
)

// This file prepares runs of container images: before the image is here there is only its
// reference; then its configuration completes the program.

// Adopt completes the program by its image's configuration.
func (p *Program) Adopt(c *image.Container) error {
	p.env = map[string]string{"PATH": language.ContainerPath, "HOME": c.Owner.Home}
	for _, v := range c.Config.Env {
		if name, value, ok := strings.Cut(v, "="); ok && name != "" {
			p.env[name] = value
		}
	}
	maps.Copy(p.env, p.given)
	if p.Supervisor != nil { // a session has commands, and no program
		if !p.ownDir && c.Config.Dir != "" {
			p.Dir = path.Join("/", c.Config.Dir)
		}
		return nil
	}
	if !p.Command {
		p.inImage = append([]string{p.Language.Interpreters[0], p.Path}, p.args...)
		p.nodeArgs = p.Language.Interpreters[1:]
		return nil
	}
	p.inImage = slices.Clone(c.Config.Entrypoint)
	if len(p.args) > 0 {
		p.inImage = append(p.inImage, p.args...)
	} else {
		p.inImage = append(p.inImage, c.Config.Cmd...)
	}
	if len(p.inImage) == 0 {
		return policy.Bad("args", "none", "and the image has no command of its own: give one after --")
	}
	if !p.ownDir {
		p.Dir = path.Join("/", c.Config.Dir)
	}
	return nil
}
