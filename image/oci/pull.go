package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/fetch"
)

const tries = 2 // of a request

// Login authenticates a user at a registry: a name and a password, or a token alone.
type Login struct {
	User, Password, Token string
	Plain                 bool     // allows sending it without TLS; always allowed to loopback
	Also                  []string // other hosts of private networks that the registry may redirect to
}

// Logins returns the login for a registry, by its HOST or HOST:PORT, or nil.
type Logins func(ctx context.Context, registry string) (*Login, error)

// Pull finds an image in a registry, for an architecture. Its layers are fetched when it is written. logins provides
// the credentials for the registry; otherwise those of docker login or podman login on this host are used.
func Pull(ctx context.Context, reference, arch string, logins Logins) (*Image, error) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, fmt.Errorf("%.200q is no reference of an image: %w", reference, err)
	}
	who, sealed := remote.WithAuthFromKeychain(authn.DefaultKeychain), false
	var also []string
	if logins != nil {
		l, err := logins(ctx, ref.Context().RegistryStr())
		if err != nil {
			return nil, fmt.Errorf("pull %s: the login of %s: %w", ref, ref.Context().RegistryStr(), err)
		}
		if l != nil {
			also = l.Also
		}
		if l != nil && l.User+l.Password+l.Token != "" {
			sealed = !l.Plain
			who = remote.WithAuth(authn.FromConfig(authn.AuthConfig{Username: l.User, Password: l.Password,
				RegistryToken: l.Token}))
		}
	}
	im, err := pull(ctx, ref, arch, who, sealed, fetch.Transport(nil, ref.Context().RegistryStr(), also...))
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", ref, explain(ref, err))
	}
	return im, nil
}

func pull(ctx context.Context, ref name.Reference, arch string, who remote.Option, sealed bool,
	t *http.Transport) (*Image, error) {
	t.TLSHandshakeTimeout = fetch.DialTime
	want := v1.Platform{OS: "linux", Architecture: arch}
	opts := []remote.Option{
		remote.WithContext(ctx), remote.WithPlatform(want), who, remote.WithTransport(sealable{fetch.Patient(t), sealed}),
		remote.WithRetryBackoff(remote.Backoff{Duration: 300 * time.Millisecond, Factor: 2, Steps: tries}),
		remote.WithUserAgent("unitask"),
	}
	desc, err := remote.Get(ref, opts...)
	if err != nil {
		return nil, err
	}
	got, err := desc.Image()
	if err != nil {
		return nil, err
	}
	digest, err := got.Digest()
	if err != nil {
		return nil, err
	}
	m, err := got.Manifest()
	if err != nil {
		return nil, err
	}
	if err := checkManifest(m); err != nil {
		return nil, err
	}
	im := &Image{Names: []string{ref.Name()}, Digest: digest.String(),
		close: func() error { t.CloseIdleConnections(); return nil }}
	for _, d := range m.Layers {
		if err := layerKind(d.MediaType); err != nil {
			return nil, err
		}
		l, err := got.LayerByDigest(d.Digest)
		if err != nil {
			return nil, err
		}
		im.Size += d.Size
		im.layers = append(im.layers, layer{digest: d.Digest, open: func() (io.ReadCloser, error) {
			r, err := l.Compressed()
			if err != nil {
				return nil, explain(ref, err)
			}
			return metered{r, &im.fetched}, nil
		}})
	}
	config, err := got.RawConfigFile()
	if err != nil {
		return nil, err
	}
	if !bytes.Contains(config, []byte("{")) {
		return nil, errors.New("its configuration is none")
	}
	if err := im.configure(config); err != nil {
		return nil, err
	}
	if im.Arch != "" && im.Arch != arch {
		return nil, fmt.Errorf("it is for linux/%.40s and not for linux/%s; --arch takes another one", im.Arch, arch)
	}
	return im, nil
}

// checkManifest validates a manifest before anything that it names is fetched. As many bytes of a configuration are
// read as the manifest states, and -1 means no end.
func checkManifest(m *v1.Manifest) error {
	for _, size := range []int64{m.Config.Size, int64(len(m.Config.Data))} {
		if size < 0 || size > maxText {
			return fmt.Errorf("its configuration has %d bytes; %d is the most", size, maxText)
		}
	}
	if len(m.Layers) > DefaultLimits.Layers {
		return fmt.Errorf("the image has %d layers; %d is the most", len(m.Layers), DefaultLimits.Layers)
	}
	return nil
}

// maxPullError bounds the bytes of an error that quotes addresses which a registry chose.
const maxPullError = 500

// explain describes a registry's error. It does not include other hosts' answers: a registry may redirect anywhere.
func explain(ref name.Reference, err error) error {
	registry := ref.Context().RegistryStr()
	var refused *transport.Error
	if !errors.As(err, &refused) {
		if first, _, more := strings.Cut(err.Error(), "\n"); more { // the host's answer follows
			return fmt.Errorf("the registry %s: %s", registry, bounded.Said(strings.TrimSuffix(first, ":"), maxPullError))
		}
		return fmt.Errorf("the registry %s: %w", registry, bounded.SaidError(err, maxPullError))
	}
	answered := fmt.Sprintf("it answered %d", refused.StatusCode)
	if refused.Request != nil && refused.Request.URL.Host != registry {
		answered = fmt.Sprintf("%s, to which it led, answered %d", refused.Request.URL.Host, refused.StatusCode)
	} else if codes := codesOf(refused); codes != "" {
		answered += " " + codes
	}
	switch refused.StatusCode {
	case http.StatusNotFound:
		return fmt.Errorf("the registry %s has no such image: %s", registry, answered)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf(
			"the registry %s has no such image, or wants a login (docker login %[1]s, podman login %[1]s, "+
				"or registries.%[1]q in the home's configuration): %s", registry, answered)
	}
	return fmt.Errorf("the registry %s: %s", registry, answered)
}

// knownCodes are the error codes of the distribution specification.
var knownCodes = []transport.ErrorCode{transport.BlobUnknownErrorCode, transport.DigestInvalidErrorCode,
	transport.ManifestInvalidErrorCode, transport.ManifestUnknownErrorCode,
	transport.NameInvalidErrorCode, transport.NameUnknownErrorCode, transport.SizeInvalidErrorCode,
	transport.UnauthorizedErrorCode, transport.DeniedErrorCode,
	transport.UnsupportedErrorCode, transport.TooManyRequestsErrorCode}

// codesOf returns the registry's error codes that the specification knows.
func codesOf(refused *transport.Error) string {
	var codes []string
	for _, e := range refused.Errors {
		if slices.Contains(knownCodes, e.Code) && !slices.Contains(codes, string(e.Code)) {
			codes = append(codes, string(e.Code))
		}
	}
	return strings.Join(codes, ", ")
}

// sealable sends requests to a registry. If sealed, there is a login that must not be sent unencrypted. Registries of
// private networks are asked without TLS if they don't answer with TLS, and an attacker on the path can cause that. A
// sealed one sends no request unencrypted, since the answer could name the address to send the login to.
type sealable struct {
	http.RoundTripper
	sealed bool
}

// brokenHTTP appears in net/http's errors about malformed HTTP, which quote the answer.
const brokenHTTP = "transport connection broken"

func (p sealable) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.sealed && r.URL.Scheme != "https" && !onLoopback(r.URL.Hostname()) {
		return nil,
			fmt.Errorf(
				"%s is not asked without TLS, since its registry has a login: "+
					"plain = true beside that in the home's configuration allows it", r.URL.Host)
	}
	resp, err := p.RoundTripper.RoundTrip(r)
	if err != nil && strings.Contains(err.Error(), brokenHTTP) {
		err = fmt.Errorf("%s does not answer as HTTP has it", r.URL.Host)
	}
	return resp, err
}

func onLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback() || host == "localhost"
}
