package image

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Package sources of the host that apt could not read: what it does not find may be in one of them.

// unreadSources is what is known of them.
type unreadSources struct {
	failed []string // addresses of files that apt could not fetch
	own    *bool    // one of the distribution's own is among them, once that was asked
}

// takeBundle is the remedy where an archive lacks what is needed.
const takeBundle = "take a bundle of the parts, `unitask image vendor --from FILE` or UNITASK_PARTS_URL"

var aptFailed = regexp.MustCompile(`(?m)^[EW]: Failed to fetch (\S+)`)

// failedAddresses returns those that an update could not fetch.
func failedAddresses(errs string) (all []string) {
	for _, m := range aptFailed.FindAllStringSubmatch(errs, -1) {
		all = append(all, m[1])
	}
	return all
}

// unreadWhy returns what apt says of them.
func (d *debian) unreadWhy() string { return strings.TrimPrefix(d.said, "; ") }

// unread is why the host's package sources say nothing of what they lack.
func (d *debian) unread() error {
	if d.said == "" {
		return fmt.Errorf("this host's package sources (/etc/apt) have no package for %s at all: %s", d.arch, takeBundle)
	}
	return fmt.Errorf("this host's package sources can't be read: %s; %s", d.unreadWhy(), takeBundle)
}

// notSeen is the error for a part of which no package was found where apt could not look everywhere; err is what was
// wrong besides, nil for a part that may go. That has gone where all of the distribution's own sources could be read.
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

// ownFailed says that a source could not be read that the C library or the kernel comes from, or may come from.
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

// madisonSources returns the addresses below which the sources are whose packages apt-cache lists, a line each:
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

// isOf reports whether one of the addresses that could not be fetched is, or may be, of a source: what a list of
// mirrors (apt-transport-mirror(1)) leads to is not seen in its own.
func isOf(failed []string, source string) bool {
	return strings.HasPrefix(source, "mirror") || slices.ContainsFunc(failed,
		func(address string) bool { return strings.HasPrefix(address, source) })
}
