package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/policy"
)

func (a *app) imagePull() *cobra.Command {
	var arch string
	cmd := &cobra.Command{
		Use:   "pull REF...",
		Short: "Fetch container images from their registries",
		Long: `Pull fetches a container image, as python:3.12-slim or ghcr.io/acme/tool:1, and
prints the digest that it is kept by. Runs with --image REF have this one until it is
pulled again; a run whose image is missing pulls it by itself. Credentials are those
that docker login or podman login left.`,
		Args: cobra.MinimumNArgs(1),
		RunE: a.withRuntime(func(cmd *cobra.Command, args []string, rt *unitask.Runtime) error {
			list := []*image.Container{}
			for _, ref := range args {
				c, err := rt.Catalog().Pull(cmd.Context(), ref, unitask.Arch(arch))
				if err != nil {
					a.done = list
					return err
				}
				a.tellContainer(c)
				list = append(list, c)
			}
			return a.report(list, func() {})
		}),
	}
	cmd.Flags().StringVar(&arch, "arch", "", "amd64 or arm64 (default this machine's)")
	return cmd
}

func (a *app) imageImport() *cobra.Command {
	var arch, name string
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Take a container image from a file or a folder",
		Long: `Import takes a container image from what docker save or podman save writes, or from
an OCI layout (a folder, or an archive of it), and prints the digest that it is kept
by. --name gives it a reference, beside those that it says are its own.`,
		Args: cobra.ExactArgs(1),
		RunE: a.withRuntime(func(cmd *cobra.Command, args []string, rt *unitask.Runtime) error {
			if _, err := os.Stat(args[0]); err != nil {
				return usage(err)
			}
			c, err := rt.Catalog().Import(cmd.Context(), args[0], name, unitask.Arch(arch))
			if err != nil {
				return err
			}
			a.tellContainer(c)
			return a.report(c, func() {})
		}),
	}
	cmd.Flags().StringVar(&name, "name", "", "a reference for it, as tools:1")
	cmd.Flags().StringVar(&arch, "arch", "", "amd64 or arm64 (default this machine's)")
	return cmd
}

func (a *app) tellContainer(c *image.Container) {
	if !a.asJSON {
		a.ui.line("%s", c.Digest)
	}
	names := c.Names
	if len(names) == 0 {
		names = []string{c.Digest}
	}
	left := ""
	if c.Devices > 0 {
		left = fmt.Sprintf(", %s left out", count(c.Devices, "device node"))
	}
	a.ui.note("%s for %s, %s, %s%s: unitask run --image %s --exec", strings.Join(names, ", "), c.Arch,
		count(c.Entries, "file"), mebibytes(c.Size()), left, names[0])
}

func containerRows(list []*image.Container) (rows [][]string) {
	for _, c := range list {
		name := strings.Join(c.Names, " ")
		if c.ShippedBy != "" {
			name = "(shipped by tenant " + c.ShippedBy + ")"
		}
		rows = append(rows, []string{c.Digest[:min(19, len(c.Digest))], name, string(c.Arch),
			mebibytes(c.Size()),
			c.Added.Local().Format(time.DateTime)})
	}
	return rows
}

// containerNamed returns the container image of a reference or digest, as image ls shows it, nil if there is
// none.
func containerNamed(rt *unitask.Runtime, name string) *image.Container {
	ref, is, err := policy.Reference(name)
	if !is || err != nil {
		return nil
	}
	for _, arch := range []image.Arch{image.HostArch(), image.AMD64, image.ARM64} {
		if c, err := rt.Images().Containers().Get(arch, ref); err == nil {
			return c
		}
	}
	list, _ := rt.Images().Containers().List()
	i := slices.IndexFunc(list, func(c *image.Container) bool {
		return c.ShippedBy != "" &&
			strings.HasPrefix(c.Digest, ref)
	})
	if i < 0 {
		return nil
	}
	return list[i]
}

// containerName returns the name of an image: for a container image, a reference.
func containerName(containers []*image.Container, im *image.Image) string {
	for _, c := range containers {
		if im.Container == c.Digest && len(c.Names) > 0 {
			return c.Names[0]
		}
	}
	return im.Name
}
