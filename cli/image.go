package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/console"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
)

func (a *app) imageCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "image",
		Short: "Build, list and remove the images that machines boot from",
	}, a.imageBuild(), a.imageList(), a.imageRemove(), a.imagePrune(), a.imageVendor(), a.imagePull(), a.imageImport())
}

// buildFlags are the flags of image build.
type buildFlags struct {
	name, kernel, arch, output, folders, held string
	warm, fresh                               bool
	cpus                                      float64
	memory                                    *size
}

func (a *app) imageBuild() *cobra.Command {
	var f buildFlags
	cmd := &cobra.Command{
		Use:   "build [NAME|FILE.toml]",
		Short: "Build a custom image, or a bundled one ahead of its first run",
		Long: `Build a custom image from FILE.toml, or from NAME.toml in the home's environments
folder. The file names the base image and what to add (from, debian, pip, npm, run,
network, files, env, warm, memoryMb, description, language). The base may be a container image,
with run and network, but without warm. A policy file limits what the build reaches:
allowNet and packages. Packages are installed, and steps run, in a machine. The exact
packages and base are written to NAME.lock.json beside the file; later builds use them.
Runs use the image by --image NAME. It hides a bundled image of the same name.

Without an argument, build the image of the vendored parts, unless it exists, and print
its digest. Missing parts are fetched first, as by image vendor. -o writes the disk of a
nanos image to a file of its own. The disk boots by BIOS on amd64, by UEFI if the release
has a loader, and with -kernel.`,
		Args: cobra.MaximumNArgs(1),
		RunE: a.withCeiling(&f.held, func(cmd *cobra.Command, args []string, rt *unitask.Runtime) error {
			return a.buildImage(cmd, args, rt, f)
		}),
	}
	imageVar(cmd, &f.name)
	cmd.Flags().StringVar(&f.held, "policy", "",
		"with NAME or FILE: a policy file, a ceiling on what the build reaches beside each .unitask.toml from here upwards")
	cmd.Flags().StringVar(&f.kernel, "kernel", "", "linux or nanos (default the best there is)")
	cmd.Flags().StringVar(&f.arch, "arch", "", "amd64 or arm64 (default this machine's)")
	cmd.Flags().BoolVar(&f.warm, "warm", false,
		"make the template too that runs are cloned from, and (linux) the one of sessions")
	cmd.Flags().BoolVar(&f.fresh, "fresh-process", false,
		"with --warm: only the one of sessions and of runs with --fresh-process; "+
			"--fresh-process=false: only that of other runs")
	f.memory = sizeVar(cmd.Flags(), "memory", 1<<20, "with --warm: "+policy.FieldOf("memoryMb").Usage())
	cmd.Flags().Float64Var(&f.cpus, "cpus", 1, "with --warm: processors of the machine")
	cmd.Flags().StringVar(&f.folders, "folders", "",
		"with --warm: what of the host's folders the template holds, as a run names it")
	_ = cmd.Flags().MarkHidden("folders")
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "write the disk to this file too (nanos)")
	return cmd
}

// buildImage builds the named image, and makes its templates if requested.
func (a *app) buildImage(cmd *cobra.Command, args []string, rt *unitask.Runtime, f buildFlags) error {
	ar, err := image.ParseArch(f.arch)
	if err != nil {
		return usage(err)
	}
	start := time.Now()
	contained, base := "", f.name
	if len(args) > 0 {
		if cmd.Flags().Changed("image") || f.output != "" {
			return usage(errors.New("--image and -o are for bundled images"))
		}
		custom, _, err := rt.BuildImage(cmd.Context(), args[0], ar)
		if err != nil {
			return err
		}
		if f.name, f.kernel = custom.Name, string(image.Linux); f.memory.n == 0 {
			f.memory.n = int64(custom.MemoryMB)
		}
		contained, base = custom.Container, custom.From
	}
	images, err := rt.Images().Named(ar, cmp.Or(contained, f.name))
	if err != nil {
		return usage(fmt.Errorf("%w%s", err, language.Nearest(f.name, language.Images())))
	}
	k := cmp.Or(image.Kernel(f.kernel), images.Best(ar))
	if k != image.Linux && k != image.Nanos {
		return usage(fmt.Errorf("unknown kernel %q: use linux or nanos", f.kernel))
	}
	im, err := images.Obtain(cmd.Context(), k, ar)
	if err != nil {
		return err
	}
	if f.output != "" {
		if err := im.Export(f.output); err != nil {
			return err
		}
	}
	if f.warm {
		processes := []bool{f.fresh}
		if !cmd.Flags().Changed("fresh-process") && k == image.Linux && slices.Contains(language.SessionImages(), base) {
			processes = []bool{false, true}
		}
		for _, fresh := range processes {
			if _, err := rt.MakeTemplate(cmd.Context(), unitask.MachineClass{Image: f.name, Kernel: k, Arch: ar,
				MemoryMB: int(cmp.Or(f.memory.n, policy.DefaultMemoryMB)), CPUs: f.cpus, FreshProcess: fresh,
				Folders: f.folders}); err != nil {
				return err
			}
		}
	}
	if err := a.report(im, func() { a.ui.line("%s", im.Digest) }); err != nil {
		return err
	}
	a.ui.note("%s image for %s on %s, %s, ready after %s", im.Name, im.Kernel, im.Arch, mebibytes(im.Size()),
		seconds(time.Since(start)))
	return nil
}

func (a *app) imageList() *cobra.Command {
	var asJSON bool
	var files string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the images in the store, or an image's files",
		Args:  cobra.NoArgs,
		RunE: a.withRuntime(func(cmd *cobra.Command, _ []string, rt *unitask.Runtime) error {
			if files != "" {
				return a.imageFiles(rt.Images(), files, asJSON)
			}
			if asJSON {
				list, err := listImages(cmd.Context(), rt)
				if err != nil {
					return err
				}
				return a.ui.json(list)
			}
			tables, err := imageTables(cmd.Context(), rt)
			for i, t := range tables {
				if i > 0 {
					fmt.Fprintln(a.std.Stdout)
				}
				a.ui.table(t.Head, t.Rows)
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	cmd.Flags().StringVar(&files, "files", "",
		"list the files of the image whose digest begins so, read back from its disk")
	return cmd
}

// listedImage is an image in the list.
type listedImage struct {
	*image.Image
	Languages []string `json:"languages"`
	SizeBytes int64    `json:"sizeBytes"` // on disk
	Template  bool     `json:"template"`  // runs with the default memory are cloned
}

// listImages returns the images in the store.
func listImages(ctx context.Context, rt *unitask.Runtime) ([]listedImage, error) {
	list, err := rt.Images().List()
	if err != nil {
		return nil, err
	}
	listed := []listedImage{}
	for _, im := range list {
		own := im.Name
		if im.Base == "" {
			own = ""
		}
		listed = append(listed, listedImage{im, rt.Catalog().ImageLanguages(own, cmp.Or(im.Base, im.Name)), im.Size(),
			rt.Catalog().HasTemplate(ctx, im)})
	}
	return listed, nil
}

// imageTables returns the tables of image ls. After the first one, empty ones are left out.
func imageTables(ctx context.Context, rt *unitask.Runtime) ([]console.Table, error) {
	listed, err := listImages(ctx, rt)
	if err != nil {
		return nil, err
	}
	containers, err := rt.Images().Containers().List()
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for _, im := range listed {
		template := "-"
		if im.Template {
			template = "ready"
		}
		rows = append(rows, []string{im.Digest[:12], containerName(containers, im.Image), strings.Join(im.Languages, " "),
			im.Runtime, string(im.Kernel), string(im.Arch), im.Version, mebibytes(im.SizeBytes), template,
			im.Built.Local().Format(time.DateTime)})
	}
	list := []console.Table{{Head: "IMAGE|NAME|LANGUAGES|RUNTIME|KERNEL|ARCH|VERSION|SIZE|TEMPLATE|BUILT", Rows: rows}}
	packages, err := packageTable(rt)
	for _, t := range []console.Table{{Head: "CONTAINER IMAGE|NAMES|ARCH|SIZE|ADDED", Rows: containerRows(containers)},
		ownTable(rt), packages} {
		if len(t.Rows) > 0 {
			list = append(list, t)
		}
	}
	return list, err
}

func (a *app) imageFiles(store *image.Store, prefix string, asJSON bool) error {
	im, err := store.Find(prefix)
	if err != nil {
		return usage(err)
	}
	if c, err := store.Containers().Get(im.Arch, im.Container); err == nil && c.ShippedBy != "" {
		return usage(fmt.Errorf("%.12s was shipped by another host, as the tenant %s's: "+
			"only its own machine reads its disk", im.Digest, c.ShippedBy))
	}
	entries, err := im.Entries()
	if err != nil {
		return err
	}
	if asJSON {
		return a.ui.json(entries)
	}
	for _, e := range entries {
		name := safe(e.Path)
		if e.Target != "" {
			name += " -> " + safe(e.Target)
		}
		fmt.Fprintf(a.std.Stdout, "%s %10d %s\n", e.Mode, e.Size, name)
	}
	return nil
}

func (a *app) imageVendor() *cobra.Command {
	var name, arch, from, to, nanos string
	cmd := &cobra.Command{
		Use:   "vendor",
		Short: "Fetch the parts that images are made of",
		Long: `Vendor fetches every part of an image that the lock files of unitask name and that the
store lacks: Node from the npm registry; Python, libraries, the CA certificates and
the Linux kernel from a mirror of Debian, each checked against its digest. It installs
nothing. The mirror is the one of this host's apt, or debianMirror of the home's
config.toml, or UNITASK_DEBIAN_MIRROR. Whatever needs an image fetches what is missing in the same way, unless
--offline, UNITASK_OFFLINE=1 or offline = true in the home's config.toml says not to.

--nanos fetches the official release of the Nanos unikernel, which is the default
kernel from then on.

Where there is no mirror, npm or C compiler, or UNITASK_PARTS_URL names one, all parts come
from a bundle, one file. The address ends in the
bundle's digest, #sha256-HEX; ARCH in it stands for the architecture. --to writes
such a bundle from the store's parts.

--from takes parts that were brought by hand, a folder or a file: a bundle (or its
address), the locked packages (.deb, .tgz), a Nanos release (.tar.gz, or a folder with kernel.img,
boot.img and klibs), or the vendor folder of another machine's store.`,
		Args: cobra.NoArgs,
		RunE: a.withRuntime(func(cmd *cobra.Command, _ []string, rt *unitask.Runtime) error {
			ar, err := image.ParseArch(arch)
			if err != nil {
				return usage(err)
			}
			if from != "" {
				_, err := rt.Images().Parts().VendorFrom(cmd.Context(), ar, from)
				return err
			}
			if nanos != "" {
				if nanos == lockedVersion {
					nanos = ""
				}
				return rt.Images().Parts().VendorNanos(cmd.Context(), ar, nanos)
			}
			images, err := rt.Images().Of(name)
			if err != nil {
				return usage(err)
			}
			if err := images.Parts().Vendor(cmd.Context(), ar); err != nil {
				return err
			}
			if to != "" {
				return images.Parts().WriteBundle(ar, to)
			}
			parts, err := rt.Images().Parts().All(ar)
			if err != nil {
				return err
			}
			var rows [][]string
			for _, p := range parts {
				note := ""
				switch {
				case p.BehindLock:
					note = "newer than vendor.lock"
				case p.FirstSeen:
					note = "digest as first seen"
				}
				rows = append(rows, []string{p.Name, p.Version, p.License, note})
			}
			return a.report(parts, func() { a.ui.table("PART|VERSION|LICENSE|NOTE", rows) })
		}),
	}
	cmd.Flags().StringVar(&arch, "arch", "", "amd64 or arm64 (default this machine's)")
	imageVar(cmd, &name)
	cmd.Flags().StringVar(&nanos, "nanos", "", "fetch a Nanos release instead: --nanos, or --nanos=VERSION")
	cmd.Flags().Lookup("nanos").NoOptDefVal = lockedVersion
	cmd.Flags().StringVar(&from, "from", "",
		"take parts from a folder, a file or a bundle's address instead of fetching them")
	cmd.Flags().StringVar(&to, "to", "", "write the parts to a bundle, FILE.tar.zst, too")
	return cmd
}

// imageVar is --image.
func imageVar(cmd *cobra.Command, name *string) {
	names := language.Images()
	cmd.Flags().StringVar(name, "image", names[0], "which image: "+strings.Join(names, ", "))
}

// lockedVersion is --nanos without a version.
const lockedVersion = "the locked one"
