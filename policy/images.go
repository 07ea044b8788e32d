package policy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Reference returns a container image's reference in one form: with its registry, and its tag or digest, like
// docker.io/library/alpine:3.20. An existing image may also be given by its digest alone, sha256:HEX. A word
// without any of / : @ is not a reference (is): it names a bundled image. So does a name with a version, as
// python@3.11.
func Reference(text string) (ref string, is bool, err error) {
	if !strings.ContainsAny(text, "/:@") || IsImageName(text) {
		return "", false, nil
	}
	if hex, ok := strings.CutPrefix(text, "sha256:"); ok {
		if !digestHex.MatchString(hex) {
			return "", true, errors.New("is no digest: sha256: and 12 to 64 digits of it")
		}
		return text, true, nil
	}
	m := referenceForm.FindStringSubmatch(text)
	if m == nil || len(text) > maxReference {
		return "", true,
			errors.New(
				"is no reference of a container image: REGISTRY/NAME:TAG, NAME:TAG or NAME@sha256:DIGEST, names in small letters")
	}
	name, tag, digest := m[1], m[2], m[3]
	first, rest, slash := strings.Cut(name, "/")
	switch {
	case slash && (strings.ContainsAny(first, ".:") || first == "localhost"):
		if rest == "" {
			return "", true, errors.New("is no reference: behind the registry a name is missing")
		}
	case slash:
		name = "docker.io/" + name
	default:
		name = "docker.io/library/" + name
	}
	if own, hub := strings.CutPrefix(strings.Replace(name, "index.docker.io/", "docker.io/", 1), "docker.io/"); hub {
		if name = "docker.io/" + own; !strings.Contains(own, "/") {
			name = "docker.io/library/" + own
		}
	}
	switch {
	case digest != "":
		return name + digest, true, nil // the tag has no meaning then
	case tag == "":
		tag = ":latest"
	}
	return name + tag, true, nil
}

const maxReference = 512 // bytes of a container image's reference

var (
	// As in environments; bundled images may have a version, too.
	imageName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,39}(@[0-9]{1,4}(\.[0-9]{1,4}){0,2})?$`)

	digestHex     = regexp.MustCompile(`^[0-9a-f]{12,64}$`)
	referenceForm = regexp.MustCompile(
		`^((?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/)?[a-z0-9]+` +
			`(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)` +
			`(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?$`)
)

// IsImageName reports whether a text can name a bundled or custom image.
func IsImageName(text string) bool { return imageName.MatchString(text) }

// imagePattern returns an entry of a ceiling's list in one form. An entry is a name, also of a custom image, a
// reference, or a pattern that ends in *.
func imagePattern(text string) (string, error) {
	if imageName.MatchString(text) {
		return text, nil
	}
	if prefix, any := strings.CutSuffix(text, "*"); any {
		registry, rest, slash := strings.Cut(prefix, "/")
		if !slash || !strings.ContainsAny(registry, ".:") && registry != "localhost" ||
			rest != "" && !strings.ContainsAny(rest[len(rest)-1:], "/:") {
			return "", errors.New("a * stands behind a registry or a whole name, as docker.io/library/* or ghcr.io/acme/tool:*")
		}
		return text, nil
	}
	if hex, ok := strings.CutPrefix(text, "sha256:"); ok && len(hex) != 64 {
		return "", errors.New("is a part of a digest, with which another image's may begin: give all 64 digits")
	}
	ref, is, err := Reference(text)
	if !is {
		return "",
			fmt.Errorf(
				"use %s, the name of an image of your own, or a container image's reference (as alpine:3.20, or ghcr.io/acme/*)",
				strings.Join(ImageNames, ", "))
	}
	return ref, err
}

// ContainerImages returns the container images that a ceiling lists by name: references, digests, and patterns that end
// in *.
func (c *Ceiling) ContainerImages() (list []string) {
	for of := c; of != nil; of = of.over {
		entries, _ := of.most["images"].([]string)
		for _, entry := range entries {
			contained := strings.ContainsAny(entry, "/:@") && !IsImageName(entry)
			if contained && c.Image(strings.TrimSuffix(entry, "*")) && !slices.Contains(list, entry) {
				list = append(list, entry)
			}
		}
	}
	return list
}

// allowsImage reports whether a list's entries allow a name, or everything that a pattern matches.
func allowsImage(list []string, name string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		prefix, any := strings.CutSuffix(entry, "*")
		return entry == name || any && strings.HasPrefix(name, prefix)
	})
}

// MistypedImage returns the first mistyped image name in a ceiling, or in one that it narrows, and "" if there is
// none. It calls mistyped with each name that is not in known. If no entry of a list can be an image, the first
// one is mistyped.
func (c *Ceiling) MistypedImage(known []string, mistyped func(name string) bool) (name string, of *Ceiling) {
	for ; c != nil; c = c.over {
		list, _ := c.most["images"].([]string)
		none := len(list) > 0
		for _, entry := range list {
			unknown := imageName.MatchString(entry) && !slices.Contains(known, entry)
			if unknown && (strings.Contains(entry, "@") || mistyped(entry)) { // no image is built with a version later
				return entry, c
			}
			none = none && unknown
		}
		if none {
			return list[0], c
		}
	}
	return "", nil
}

// WrongImage returns an error for an image that a ceiling lists.
func (c *Ceiling) WrongImage(name, reason string) error {
	err := Bad("images", fmt.Sprintf("%.80q", name), "%s", reason)
	if from := c.inherited["images"]; from != "" && from != c.Path {
		return &CeilingError{from, 0, err}
	}
	return c.wrong("images", err)
}

// fetching allows web_fetch, whose image goes with it.
type fetching struct{ permission }

func (k fetching) narrow(f *Field, c *Ceiling, r *Request, e *Effective, deny deny) {
	k.permission.narrow(f, c, r, e, deny)
	if r.WebFetch && !e.WebFetch && e.Image == WebImage {
		e.Image = ""
	}
}

// oneOf is one image from a ceiling's list. A run whose image is denied gets no other one and does not run.
type oneOf struct{ none }

func (oneOf) form() Form { return Text }

func (oneOf) resolve(f *Field, r *Request, e *Effective) error {
	*at[string](e, f.Key) = *at[string](r, f.Key)
	return nil
}

func (oneOf) read(_ *Field, value any, _ string) (any, error) {
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("is a %s, and must be a list", tomlType(value))
	}
	names := []string{}
	for _, v := range list {
		name, ok := v.(string)
		switch {
		case !ok:
			return nil, fmt.Errorf("a %s, and must be a list of strings", tomlType(v))
		}
		name, err := imagePattern(name)
		if err != nil {
			return nil, fmt.Errorf("%.80q: %w", v, err)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, errors.New("no image, so that nothing could run: name some, or leave the key out")
	}
	return names, nil
}

func (oneOf) narrow(f *Field, c *Ceiling, _ *Request, e *Effective, deny deny) {
	allowed, said := c.most[f.ceiling()].([]string)
	name := at[string](e, f.Key)
	if e.WebFetch && *name == WebImage { // the key webFetch decides
		return
	}
	if said && *name != "" && !allowsImage(allowed, *name) {
		deny(*name, "only "+strings.Join(allowed, ", ")+" is allowed")
		*name = ""
	}
}

func (oneOf) beyond(mine, base any) (beyond []string) {
	for _, name := range mine.([]string) {
		if !allowsImage(base.([]string), name) {
			beyond = append(beyond, name)
		}
	}
	return beyond
}
