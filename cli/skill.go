package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/skill"
	"github.com/unitask/unitask/policy"
)

func (a *app) skillCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "skill",
		Short: "Run the scripts of Agent Skills in a machine",
		Long: `A skill is a folder with a SKILL.md and with scripts. Its metadata may name hosts
(unitask-allow-net) and packages (unitask-packages) that the scripts need.`,
	}, a.skillRun(), a.skillTrust(), a.skillList())
}

// skillsPlace is the folder of skills in a machine.
const skillsPlace = "/skills"

// skillDecides are the flags of a machine that a skill's metadata stands for.
var skillDecides = []string{"allow-net", "allow-net-any", "ask", "allow-http", "allow-tcp", "with", "tools"}

// trustedSkills returns the home's list.
func (a *app) trustedSkills() (skill.Trust, error) {
	home, err := a.homeFolder()
	d := layout.Dir(home)
	return skill.Trust{Path: d.Skills(), Lock: d.Lock("skills")}, err
}

// readSkill reads a skill, and copies it to a folder unless that is "".
func readSkill(dir, to string) (*skill.Skill, error) {
	s, err := skill.Read(dir, to)
	switch {
	case errors.As(err, new(*skill.ManifestError)):
		return nil, usage(fmt.Errorf("skill %s: %w", dir, err))
	case errors.As(err, new(*fs.PathError)):
		return nil, usage(fmt.Errorf("skill: %w", err))
	}
	return s, err
}

func (a *app) skillRun() *cobra.Command {
	var f runFlags
	var life time.Duration
	cmd := &cobra.Command{
		Use:   "run SKILL [SCRIPT] [-- ARG...]",
		Short: "Run a script of an Agent Skill in a machine",
		Long: `Run copies the skill's folder into a fresh machine, where it can't be changed, and runs
SCRIPT, a file of the folder or of its folder scripts; without it the only one. The script
begins in /work. Its exit code is that of unitask. --out brings what it leaves in /out.

The scripts of a skill that you have trusted (unitask skill trust) may use the hosts and
packages that its metadata names, as far as the ceiling allows. Others have no network. A
trusted skill that has changed is refused.`,
		Example: `  unitask skill run ./pdf-tools
  unitask skill run ./pdf-tools merge.py --file a.pdf --out . -- a.pdf`,
		RunE: func(cmd *cobra.Command, args []string) error {
			rest := []string{}
			if at := cmd.ArgsLenAtDash(); at >= 0 {
				args, rest = args[:at], args[at:]
			}
			if len(args) == 0 || len(args) > 2 {
				return hint(usage(errors.New("name a skill's folder, and one script at most")),
					"arguments of the script follow --")
			}
			for _, name := range skillDecides {
				if flag := cmd.Flags().Lookup(name); flag != nil && flag.Changed {
					return usage(fmt.Errorf("--%s does not go with a skill, whose metadata says what it needs: %s and %s",
						name, skill.HostsKey, skill.PackagesKey))
				}
			}
			return a.runSkill(cmd, f, life, slices.Concat(args, []string{""})[:2], rest)
		},
	}
	f.machineFlags(cmd, &life)
	outFlags(cmd.Flags(), &f)
	return cmd
}

// runSkill runs a script: named are the skill and its script.
func (a *app) runSkill(cmd *cobra.Command, f runFlags, life time.Duration, named, args []string) error {
	if err := errors.Join(f.outFolder(), a.readsFolder()); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "unitask-skill-") // what is checked is what runs
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := readSkill(named[0], dir)
	if err != nil {
		return err
	}
	trusted, err := a.checkSkill(s)
	if err != nil {
		return err
	}
	script, err := s.Script(named[1])
	if err != nil {
		return usage(fmt.Errorf("skill %s: %w", named[0], err))
	}
	text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(script)))
	if err != nil {
		return err
	}
	program := skill.Program(script, text)
	if program == nil {
		return usage(fmt.Errorf("script %s: scripts in Python, JavaScript and shell run; neither its name nor "+
			"its first line is one's", safe(script)))
	}
	req, err := f.machine(a, cmd, program[0])
	if err == nil {
		err = mountsHere(&req)
	}
	if err != nil {
		return err
	}
	req.AllowNetAny, req.Ask, req.AllowHTTP, req.AllowTCP, req.Tools = false, nil, nil, nil, nil // not by defaults either
	req.AllowNet, req.Packages = nil, nil
	if trusted {
		req.AllowNet, req.Packages = s.Hosts, s.Packages
	}
	place := path.Join(skillsPlace, s.Name)
	req.Dirs = append(req.Dirs, unitask.Mount{Host: dir, Guest: place})
	command := append([]string{program[1], path.Join(place, script)}, args...)
	return a.skillMachine(cmd, f, req, life, place, command)
}

// skillMachine runs a command in the machine of a skill, which is at place.
func (a *app) skillMachine(cmd *cobra.Command, f runFlags, req unitask.Request, life time.Duration, place string,
	command []string) error {
	f.tty, f.input = isTerminal(a.std.Stdout) && isTerminal(a.std.Stdin), true
	limited := cmd.Flags().Changed("timeout")
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	s, end, err := a.ownSessionOf(ctx, cmd, f, req, life)
	if err != nil {
		return err
	}
	defer end()
	if !slices.ContainsFunc(s.Policy.Effective.Dirs, func(m policy.Mount) bool { return m.Guest == place }) {
		return hint(usage(errors.New("the ceiling does not allow the skill's folder")),
			"skills are copied to "+os.TempDir()+" first: dirs in .unitask.toml must allow that")
	}
	return a.onlyCommand(ctx, stop, s, command, f, limited)
}

// checkSkill reports whether a skill is trusted. One that has changed since is an error.
func (a *app) checkSkill(s *skill.Skill) (bool, error) {
	trust, err := a.trustedSkills()
	if err != nil {
		return false, err
	}
	was, err := trust.Of(s.Source)
	if err != nil {
		return false, err
	}
	if was == nil {
		if len(s.Hosts)+len(s.Packages) > 0 {
			a.ui.note("the skill is not trusted: it gets none of its hosts and packages; read it, then: unitask skill trust %s",
				safe(s.Source))
		}
		return false, nil
	}
	if changed := was.Changed(s.Files); len(changed) > 0 {
		shown := strings.Join(changed[:min(len(changed), 10)], ", ")
		if len(changed) > 10 {
			shown += fmt.Sprintf(" and %d more", len(changed)-10)
		}
		return false, hint(usage(fmt.Errorf("skill %s has changed since you trusted it: %s", safe(s.Source), safe(shown))),
			"read what changed, then: unitask skill trust "+shellWord(s.Source))
	}
	return true, nil
}

func (a *app) skillTrust() *cobra.Command {
	var forget bool
	cmd := &cobra.Command{
		Use:   "trust SKILL",
		Short: "Let an Agent Skill's scripts use the hosts and packages that it names",
		Long: `Trust remembers the digests of all files of the skill. Its scripts then get the hosts and
packages of its metadata, as far as the ceiling allows. Read the scripts first. When a file
changes, unitask refuses the skill until you trust it again.`,
		Example: `  unitask skill trust ./pdf-tools
  unitask skill trust --forget ./pdf-tools`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			trust, err := a.trustedSkills()
			if err != nil {
				return err
			}
			if forget { // also one that no longer exists
				return a.forgetSkill(trust, args[0])
			}
			s, err := readSkill(args[0], "")
			if err != nil {
				return err
			}
			if err := trust.Set(s, time.Now().UTC()); err != nil {
				return err
			}
			return a.report(map[string]any{"skill": s.Name, "folder": s.Source, "files": len(s.Files),
				"hosts": append([]string{}, s.Hosts...), "packages": append([]string{}, s.Packages...),
				"scripts": append([]string{}, s.Scripts()...)}, func() {
				a.ui.line("%s is trusted as it is now: %s", safe(s.Source), count(len(s.Files), "file"))
				for name, list := range map[string][]string{"hosts": s.Hosts, "packages": s.Packages} {
					if len(list) > 0 {
						a.ui.line("%s: %s", name, safe(strings.Join(list, ", ")))
					}
				}
			})
		},
	}
	cmd.Flags().BoolVar(&forget, "forget", false, "trust it no longer")
	return cmd
}

func (a *app) forgetSkill(trust skill.Trust, dir string) error {
	source, err := skill.Folder(dir)
	if errors.Is(err, fs.ErrNotExist) {
		source, err = filepath.Abs(dir)
	}
	if err != nil {
		return err
	}
	there, err := trust.Forget(source)
	if err == nil && !there {
		err = hint(usage(fmt.Errorf("skill %s is not trusted", safe(source))), "unitask skill ls")
	}
	return err
}

// listedSkill is a skill in a list.
type listedSkill struct {
	Name    string   `json:"name"`
	Folder  string   `json:"folder"`
	State   string   `json:"state"` // trusted, changed, unreadable, or not trusted
	Changed []string `json:"changed,omitempty"`
}

func (a *app) skillList() *cobra.Command {
	return &cobra.Command{
		Use:   "ls [FOLDER]",
		Short: "List trusted skills, and the skills in a folder",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			trust, err := a.trustedSkills()
			if err != nil {
				return err
			}
			list, err := trust.List()
			if err != nil {
				return err
			}
			shown := []listedSkill{}
			for _, was := range list {
				one := listedSkill{Name: was.Name, Folder: was.Source, State: "trusted"}
				if now, err := skill.Read(was.Source, ""); err != nil {
					one.State = "unreadable"
				} else if one.Changed = was.Changed(now.Files); len(one.Changed) > 0 {
					one.State = "changed"
				}
				shown = append(shown, one)
			}
			if len(args) == 1 {
				if shown, err = skillsIn(args[0], shown); err != nil {
					return err
				}
			}
			return a.report(shown, func() {
				var rows [][]string
				for _, one := range shown {
					rows = append(rows, []string{safe(one.Name), one.State, safe(one.Folder)})
				}
				a.ui.table("SKILL|STATE|FOLDER", rows)
			})
		},
	}
}

// skillsIn adds the skills of a folder that are not in a list.
func skillsIn(dir string, list []listedSkill) ([]listedSkill, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, usage(err)
	}
	for _, e := range entries {
		s, err := skill.Read(filepath.Join(dir, e.Name()), "")
		if err != nil || slices.ContainsFunc(list, func(one listedSkill) bool { return one.Folder == s.Source }) {
			continue
		}
		list = append(list, listedSkill{Name: s.Name, Folder: s.Source, State: "not trusted"})
	}
	return list, nil
}
