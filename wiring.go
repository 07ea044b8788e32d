package unitask

import (
	"context"

	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/packages"
)

// What the runtime passes to the packages that need machines of it.

// runBuild runs a request that a build makes. What its machine does is no event of the caller's.
func (rt *Runtime) runBuild(ctx context.Context, caller Caller, req catalog.Request, build *install.Build) (*Result, error) {
	return rt.runFor(ctx, caller, req, IO{Events: func(Event) {}}, inspection{build: build})
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
