package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
)

// tools are the packages from npm that the tests need, of those that the SDK's package.json names for developers.
var tools = []string{"@types/node", "dotenv", "error-stack-parser-es", "msw", "react", "typescript", "vitest"}

// vitestConfig runs the tests that need neither a browser nor another runtime.
const vitestConfig = `import { defineConfig } from 'vitest/config'
import { existsSync } from 'node:fs'
const setup = 'tests/globalFetchFallback.setup.ts'
export default defineConfig({
  test: {
    include: ['tests/**/*.test.ts'],
    exclude: ['tests/runtimes/**', 'tests/bundle/**', 'tests/**/*.browser.test.ts'],
    testTimeout: 180_000, hookTimeout: 180_000, environment: 'node', maxWorkers: 2,
    setupFiles: existsSync(setup) ? [setup] : [],
    deps: { interopDefault: true },
  },
})
`

// prepareJS copies a JavaScript SDK with its tests, and installs what they need with npm.
func (s *suite) prepareJS(ctx context.Context, dir string) error {
	from, to := filepath.Join(s.checkout, s.folder), filepath.Join(dir, s.sdk)
	var is struct {
		Name, Version        string
		Dependencies         map[string]string
		DevDependencies      map[string]string
		OptionalDependencies map[string]string
	}
	text, err := os.ReadFile(filepath.Join(from, "package.json"))
	if err = errors.Join(err, json.Unmarshal(text, &is)); err != nil {
		return err
	}
	s.version = is.Version
	needs := maps.Clone(is.Dependencies)
	maps.Copy(needs, is.OptionalDependencies)
	for _, name := range tools {
		if version := is.DevDependencies[name]; version != "" {
			needs[name] = version
		}
	}
	project, err := json.Marshal(map[string]any{"name": is.Name, "version": is.Version, "private": true,
		"dependencies": needs})
	if err = errors.Join(err, os.Mkdir(to, 0o700),
		os.WriteFile(filepath.Join(to, "package.json"), project, 0o600),
		os.WriteFile(filepath.Join(to, "vitest.config.mts"), []byte(vitestConfig), 0o600),
		command(ctx, "cp", "-r", from+"/src", from+"/tests", to).Run()); err != nil {
		return err
	}
	install := command(ctx, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--legacy-peer-deps")
	install.Dir = to
	return install.Run()
}
