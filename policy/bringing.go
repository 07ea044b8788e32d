package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// workerRule is the rule in denials of a worker's own ceiling.
const workerRule = "the worker's built-in ceiling"

// ForFleet returns the ceiling on runs from other hosts, key by key, unless the host's own file (nil means none)
// sets a key. It allows only bundled images. It forbids what a run would do in this host's name: raw TCP, which
// reaches this host's network, packages from its registries, web_fetch and tools. The file can't allow the last two.
func ForFleet(file *Ceiling) *Ceiling {
	own := &Ceiling{Path: workerRule, most: map[string]any{"images": slices.Clone(ImageNames), "packages": []PackageRule{},
		"allowTcp": []TCPRule{}, "webFetch": false, toolsKey: toolLimit{}}}
	c := own.With(file)
	c.most["webFetch"] = false // its image would be granted for a tenant's own code
	c.most[toolsKey] = toolLimit{}
	return c
}

// Bringing returns the ceiling for a run whose files and folders were copied from another host into a folder of this
// one. The folder's path has no links, and "" means none. Of this host's files it admits only those, whatever the
// ceiling (nil means none) allows of the host's own. A copied link may lead anywhere.
func (c *Ceiling) Bringing(folder string) *Ceiling {
	own := Ceiling{}
	if c != nil {
		own = *c
	}
	own.origin = nil
	if own.most = maps.Clone(own.most); own.most == nil {
		own.most = map[string]any{}
	}
	for i := range Fields {
		f := &Fields[i]
		if _, is := f.kind.(mounts); !is {
			continue
		}
		own.most[f.ceiling()] = []string{}
		if folder != "" {
			own.most[f.ceiling()] = []string{folder}
		}
	}
	if own.over != nil {
		own.over = own.over.Bringing(folder)
	}
	return &own
}

// ShippedImages, among a ceiling's images, stands for every shipped image: containers' and custom ones.
const ShippedImages = "shipped"

// OldShippedImages is the name of ShippedImages before December 2026. This release accepts both.
const OldShippedImages = "brought"

// renameImages replaces the old name of ShippedImages in a list, and returns a notice if it did.
func renameImages(list []string) (notice string) {
	for i, entry := range list {
		if entry == OldShippedImages {
			list[i] = ShippedImages
			notice = fmt.Sprintf("images: %q is called %q now; the next release does not take the old name",
				OldShippedImages, ShippedImages)
		}
	}
	return notice
}

// ListsShipped returns the first ceiling that lists ShippedImages: this one or one that it narrows; nil if none
// does.
func (c *Ceiling) ListsShipped() *Ceiling {
	for ; c != nil; c = c.over {
		if list, _ := c.most["images"].([]string); slices.Contains(list, ShippedImages) {
			return c
		}
	}
	return nil
}

// TakesImages reports whether a ceiling allows any shipped image.
func (c *Ceiling) TakesImages() bool {
	for ; c != nil; c = c.over {
		if list, said := c.most["images"].([]string); said &&
			!slices.ContainsFunc(list, func(entry string) bool {
				return entry == ShippedImages ||
					strings.HasPrefix(entry, "sha256:")
			}) {
			return false
		}
	}
	return true
}

// BringingImage returns the ceiling for a run whose image was shipped and is stored here as key. It allows the
// image if the ceiling allows ShippedImages, or the digest of the whole image.
func (c *Ceiling) BringingImage(digest, key string) *Ceiling {
	if c == nil {
		return nil
	}
	own := *c
	own.origin = nil
	if list, said := c.most["images"].([]string); said &&
		(slices.Contains(list, ShippedImages) || slices.Contains(list, digest)) {
		own.most = maps.Clone(c.most)
		own.most["images"] = append(slices.Clone(list), key)
	}
	own.over = c.over.BringingImage(digest, key)
	return &own
}

// reachKeys are the keys of a ceiling that limit the use of a network, wherever it leads.
var reachKeys = []string{"net", "maxConnections", "maxUploadBytes", "maxDownloadBytes"}

// Reaching returns the ceiling of a machine that builds: this one's rules by method and path, and its limits on network
// traffic. The builder decides what to build, and from what.
func (c *Ceiling) Reaching() *Ceiling {
	if c == nil {
		return nil
	}
	own := *c
	own.most, own.origin = map[string]any{}, nil
	for _, key := range reachKeys {
		if value, said := c.most[key]; said {
			own.most[key] = value
		}
	}
	own.over = c.over.Reaching()
	return &own
}
