package image

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Package sources of the host that apt could not read. A package that apt does not find may be in one of them.

// unreadSources describes the sources that apt could not read.
type unreadSources struct {
	failed []string // addresses of files that apt could not fetch
	own    *bool    // whether a source of the distribution itself is among them; nil until checked
}

// takeBundle is the advice to the user if the archive lacks a part.
const takeBundle = "take a bundle of the parts, `unitask image vendor --from FILE` or UNITASK_PARTS_URL"

var aptFailed = regexp.MustCompile(`(?m)^[EW]: Failed to fetch (\S+)`)

// failedAddresses returns the addresses that an update could not fetch.
func failedAddresses(errs string) (all []string) {
	for _, m := range aptFailed.FindAllStringSubmatch(errs, -1) {
		all = append(all, m[1])
	}
	return all
}

// unreadWhy returns apt's messages about the unread sources.
func (d *debian) unreadWhy() string { return strings.TrimPrefix(d.said, "; ") }

// unread returns the error for a host whose package sources offer no package at all.
func (d *debian) unread() error {
	if d.said == "" {
		return fmt.Errorf("this host's package sources (/etc/apt) have no package for %s at all: %s", d.arch, takeBundle)
	}
	return fmt.Errorf("this host's package sources can't be read: %s; %s", d.unreadWhy(), takeBundle)
}

// notSeen returns the error for a part whose package was not found while some sources were unreadable. err is another
// error of the search, or nil for a part that a release may drop. Such a part counts as dropped if all of the
// distribution's own sources could be read.
func (d *debian) notSeen(ctx context.Context, p LockedPart, err error) error {
	if err != nil {
		if strings.Contains(err.Error(), d.unreadWhy()) {
			return err
		}
		return fmt.Errorf("%w; some of this host's package sources can't be read: %s", err, d.unreadWhy())
	}
	if d.own == nil {
		own, err := d.ownFailed(ctx)
		if err != nil {
			return err
		}
		d.own = &own
	}
	if *d.own {
		return fmt.Errorf("%s is not found: %w", p.Package, d.unread())
	}
	return nil
}

// ownFailed reports whether an unreadable source may provide the C library or the kernel.
func (d *debian) ownFailed(ctx context.Context) (bool, error) {
	for _, part := range []string{libcPart, kernelPart} {
		i := slices.IndexFunc(d.locked, func(l LockedPart) bool { return l.Name == part })
		if i < 0 {
			return true, nil
		}
		out, err := d.run(ctx, d.state, "apt-cache", append([]string{"madison", d.locked[i].Package},
			d.locked[i].Successors...)...)
		if err != nil {
			return false, err
		}
		sources := madisonSources(string(out))
		if len(sources) == 0 || slices.ContainsFunc(sources, func(source string) bool { return isOf(d.failed, source) }) {
			return true, nil
		}
	}
	return false, nil
}

// madisonSources returns the base addresses of the sources in a list of apt-cache madison. Each line has the form
// NAME | VERSION | ADDRESS SUITE/COMPONENT ARCH Packages, or ADDRESS FOLDER/ Packages.
func madisonSources(list string) (all []string) {
	for line := range strings.Lines(list) {
		columns := strings.Split(line, "|")
		if len(columns) != 3 {
			continue
		}
		words := strings.Fields(columns[2])
		if len(words) < 2 {
			continue
		}
		below := strings.TrimSuffix(words[0], "/") + "/"
		if suite, component, _ := strings.Cut(words[1], "/"); component != "" {
			below += "dists/" + suite + "/"
		}
		all = append(all, below)
	}
	return all
}

// isOf reports whether an address that could not be fetched belongs, or may belong, to a source. A mirror list
// (apt-transport-mirror(1)) does not show the addresses that it leads to.
func isOf(failed []string, source string) bool {
	return strings.HasPrefix(source, "mirror") || slices.ContainsFunc(failed,
		func(address string) bool { return strings.HasPrefix(address, source) })
}
