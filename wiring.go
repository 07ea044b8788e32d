package unitask

import (
	"context"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/imagebuild"
	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/packages"
)

// What the runtime passes to the packages that need machines of it.

// runBuild runs a request that a build makes. What its machine does is no event of the caller's.
func (rt *Runtime) runBuild(ctx context.Context, by Caller, req catalog.Request, b *install.Build) (*Result, error) {
	return rt.runFor(ctx, by, req, IO{Events: func(Event) {}}, inspection{build: b})
}

func (rt *Runtime) installer() *install.Installer {
	return &install.Installer{Home: rt.opts.Home, Images: rt.images, Records: rt.runs, Journal: rt.journal,
		Proxy: rt.opts.Upstream.Proxy, Run: rt.runBuild}
}

// Packages is the store of what was built for runs.
func (rt *Runtime) Packages() *packages.Store { return rt.installer().Store() }

// RemovePackages removes what was built for runs, but for what a run under way has, and says how many sets of packages
// that were. The next run that asks for some has them built again, from what the registry then has.
func (rt *Runtime) RemovePackages(ctx context.Context) (int, error) {
	return rt.installer().RemoveAll(ctx)
}

// BuildImage builds a custom image, from a file or from that of its name in the home's environments, with the versions
// that the lock file beside it says; it writes that file where there is none. Foreign code runs in machines only, and
// reaches no more than the runtime's ceiling allows. Runs that name the image have this one once it is whole.
func (rt *Runtime) BuildImage(ctx context.Context, from string, arch Arch) (*OwnImage, *image.Image, error) {
	leave, err := rt.enter()
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	b := imagebuild.Builder{Catalog: rt.catalog, Installer: rt.installer(), Ceiling: rt.opts.Ceiling,
		RequireJail: rt.opts.RequireJail}
	return b.Build(ctx, from, arch)
}
