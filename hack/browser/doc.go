// Package browser tests `unitask ui` with a real browser: Debian's chromium, over its DevTools protocol.
package browser
