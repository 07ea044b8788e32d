package language

import (
	"slices"
	"strings"

	"github.com/unitask/unitask/policy"
)

// noPackages are modules that no package is named after. They are modules of the standard library, whose rest the
// images have, and names that people give to their own files.
var noPackages = []string{"_tkinter", "app", "common", "config", "distutils", "ensurepip", "helper", "helpers",
	"idlelib", "lib", "main", "models", "src", "test", "tests", "tkinter", "turtle", "utils", "win32api"}

// pypiNames are packages of PyPI whose modules have other names.
var pypiNames = map[string]string{
	"Crypto": "pycryptodome", "OpenSSL": "pyOpenSSL", "PIL": "pillow", "attr": "attrs", "bs4": "beautifulsoup4",
	"cv2": "opencv-python-headless", "dateutil": "python-dateutil", "docx": "python-docx", "dotenv": "python-dotenv",
	"MySQLdb": "mysqlclient",
	"dns":     "dnspython", "fitz": "pymupdf", "git": "GitPython", "jose": "python-jose", "jwt": "PyJWT",
	"magic": "python-magic", "pptx": "python-pptx", "psycopg2": "psycopg2-binary", "serial": "pyserial",
	"skimage": "scikit-image", "sklearn": "scikit-learn", "slugify": "python-slugify", "usb": "pyusb",
	"websocket": "websocket-client", "yaml": "PyYAML", "zmq": "pyzmq",
}

// PackageOf returns the package that a module may be of, as Request.Packages has it (pip:pillow for PIL). It returns ""
// for the path of a file, and for languages that have no packages.
func (l *Language) PackageOf(module string) string {
	if l.Packages == nil || module == "" || strings.HasPrefix(module, ".") || strings.HasPrefix(module, "/") {
		return ""
	}
	parts := strings.Split(module, "/")
	name := parts[0]
	if l.Packages.System == policy.Pip {
		parts = strings.Split(name, ".")
		name = parts[0]
		switch other := pypiNames[name]; {
		case other != "":
			name = other
		case name == "google" && len(parts) == 1, slices.Contains(noPackages, name):
			return ""
		case name == "google" && parts[1] == "protobuf":
			name = "protobuf"
		case name == "google": // a namespace: google.cloud.storage, google.auth
			name = strings.Join(parts[:min(len(parts), 2+strings.Count(parts[1], "cloud"))], "-")
		}
	} else if strings.HasPrefix(name, "@") && len(parts) > 1 {
		name += "/" + parts[1]
	}
	spec := l.Packages.System + ":" + name
	if _, err := policy.ParsePackage(spec); err != nil || name == "" {
		return ""
	}
	return spec
}
