package policy

import (
	"maps"
	"slices"
	"strings"
)

// workerRule is what denials of a worker's own ceiling name as their rule.
const workerRule = "the worker's built-in ceiling"

// ForFleet is the ceiling on runs that other hosts send to this one, key by key, where the host's own
// file (nil is none) says nothing else: no images but those that come along, and nothing that is done
// in this host's name, which are raw TCP, where its own network is, and packages, by its registries.
func ForFleet(file *Ceiling) *Ceiling {
	own := &Ceiling{Path: workerRule, most: map[string]any{"images": slices.Clone(ImageNames), "packages": []PackageRule{}, "allowTcp": []TCPRule{}}}
	return own.With(file)
}

// Bringing is the ceiling for a run whose files and folders came along from another host, into a
// folder of this one that is free of links, "" for none: of this host's files it admits those and no
// others, whatever the ceiling, of which nil is none, says of the host's own. A link that came along
// may lead anywhere.
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

// BroughtImages, among a ceiling's images, stands for every image that comes along from another host: containers', and
// users' own.
const BroughtImages = "brought"

// TakesImages says that a ceiling allows some image that comes along.
func (c *Ceiling) TakesImages() bool {
	for ; c != nil; c = c.over {
		if list, said := c.most["images"].([]string); said && !slices.ContainsFunc(list, func(entry string) bool { return entry == BroughtImages || strings.HasPrefix(entry, "sha256:") }) {
			return false
		}
	}
	return true
}

// BringingImage is the ceiling for a run whose image came along, and is kept here as key: that is allowed
// where BroughtImages is, or the digest that names all of the image.
func (c *Ceiling) BringingImage(digest, key string) *Ceiling {
	if c == nil {
		return nil
	}
	own := *c
	own.origin = nil
	if list, said := c.most["images"].([]string); said && (slices.Contains(list, BroughtImages) || slices.Contains(list, digest)) {
		own.most = maps.Clone(c.most)
		own.most["images"] = append(slices.Clone(list), key)
	}
	own.over = c.over.BringingImage(digest, key)
	return &own
}

// reachKeys are the keys of a ceiling that bound what is done with a network, wherever it leads.
var reachKeys = []string{"net", "maxConnections", "maxUploadBytes", "maxDownloadBytes"}

// Reaching is the ceiling of a machine that builds: what this one says of requests by method and path, and of how much
// goes over the network. What is built, and of what, it leaves to who builds.
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
