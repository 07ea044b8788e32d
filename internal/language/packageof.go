package language

import (
	"strings"

	"github.com/unitask/unitask/policy"
)

// pypiNames are packages of PyPI whose modules have other names.
var pypiNames = map[string]string{
	"Crypto": "pycryptodome", "OpenSSL": "pyOpenSSL", "PIL": "pillow", "attr": "attrs", "bs4": "beautifulsoup4",
	"cv2": "opencv-python-headless", "dateutil": "python-dateutil", "docx": "python-docx", "dotenv": "python-dotenv",
	"fitz": "pymupdf", "git": "GitPython", "google": "protobuf", "jose": "python-jose", "jwt": "PyJWT",
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
		name, _, _ = strings.Cut(name, ".")
		if other := pypiNames[name]; other != "" {
			name = other
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
