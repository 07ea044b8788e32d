package main

import "testing"

// A mistyped public key would make programs that can never update themselves.
func TestOpenKeyRefusesMistyped(t *testing.T) {
	if _, err := openKey("", "RWQ mistyped"); err == nil {
		t.Error("a mistyped public key was taken")
	}
	if by, err := openKey("", ""); err != nil || by.flags() != "" {
		t.Errorf("no key: %v %q", err, by.flags())
	}
}
