package broker

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"sync"
	"time"
)

const (
	// caSkew is the allowed error of the guest's clock, in both directions.
	caSkew = 24 * time.Hour
	// caLife is longer than any run.
	caLife = 7 * 24 * time.Hour
	// maxLeaves bounds the certificates of one run; a wildcard would allow any number.
	maxLeaves = 1024
)

// authority is the certificate authority of one run. Its key is written only when the machine is paused, beside
// the machine's memory: only that machine trusts it.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	now  func() time.Time

	mu     sync.Mutex
	leaves map[string]*tls.Certificate
}

// newAuthority returns an authority that is valid for domains and their subdomains, and for no address.
func newAuthority(domains []string, now func() time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the run's CA: %w", err)
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	all := func(bytes int) *net.IPNet { return &net.IPNet{IP: make(net.IP, bytes), Mask: make(net.IPMask, bytes)} }
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "unitask, for this run"},
		NotBefore: now().Add(-caSkew), NotAfter: now().Add(caLife + caSkew),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: domains,
		ExcludedIPRanges: []*net.IPNet{all(net.IPv4len), all(net.IPv6len)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make the run's CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the run's CA: %w", err)
	}
	return &authority{cert: cert, key: key, now: now, leaves: map[string]*tls.Certificate{}}, nil
}

// keep encodes the authority for keptAuthority.
func (a *authority) keep() ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, fmt.Errorf("keep the run's CA: %w", err)
	}
	return append(a.pem(), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...), nil
}

// keptAuthority restores an authority from keep's encoding.
func keptAuthority(text []byte, now func() time.Time) (*authority, error) {
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		return nil, fmt.Errorf("read the run's CA: %w", err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("read the run's CA: it is none")
	}
	return &authority{cert: pair.Leaf, key: key, now: now, leaves: map[string]*tls.Certificate{}}, nil
}

func serialNumber() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}

// pem returns the certificate that a guest trusts.
func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// leaf returns the certificate of one host.
func (a *authority) leaf(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.leaves[host]; c != nil {
		return c, nil
	}
	if len(a.leaves) >= maxLeaves {
		return nil, fmt.Errorf("more than %d hosts in one run", maxLeaves)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for %s: %w", host, err)
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, DNSNames: []string{host}, NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for %s: %w", host, err)
	}
	c := &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: key}
	a.leaves[host] = c
	return c, nil
}
