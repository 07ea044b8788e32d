package python

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/system"
)

// What the image data contains beside Python: numpy, pandas, matplotlib and packages for data files, as Debian
// packages them.

// DataParts are the vendored parts of the image data.
var DataParts = slices.Concat(Parts, []string{
	"python3-numpy", "python3-pandas", "python3-pandas-lib", "python3-matplotlib", "python-matplotlib-data",
	"python3-openpyxl", "python3-et-xmlfile", "python3-lxml", "python3-pil", "python3-scipy", "python3-decorator",
	"python3-dateutil", "python3-pytz", "python3-six", "python3-pyparsing", "python3-contourpy", "python3-cycler",
	"python3-fonttools", "python3-kiwisolver", "python3-packaging", "libblas3", "liblapack3", "liblbfgsb0",
	"libgfortran5", "libquadmath0", "libfreetype6", "libpng16-16", "libqhull-r8.0", "libbrotli1", "libxml2",
	"libxslt1.1", "libicu", "libimagequant0", "libjpeg62-turbo", "liblcms2-2", "libopenjp2-7", "libraqm0",
	"libharfbuzz0b", "libfribidi0", "libgraphite2-3", "libtiff6", "libdeflate0", "libjbig0", "liblerc4", "libwebp7",
	"libsharpyuv0",
	"libwebpdemux2", "libwebpmux3", "fonts-dejavu-core", "fonts-dejavu-mono", "fonts-lyx",
})

// Only lists parts that exist for a single architecture.
var Only = map[string]string{"libquadmath0": "amd64", "libmvec": system.Only["libmvec"]}

// DataModules are the modules that people would otherwise install.
var DataModules = []string{"numpy", "pandas", "matplotlib", "scipy", "openpyxl", "lxml", "PIL", "dateutil", "pytz",
	"six", "fontTools", "packaging", "pyparsing"}

// Packages is the folder of Debian's Python packages.
const Packages = "/usr/lib/python3/dist-packages"

// DataFolders are the folders with many files.
var DataFolders = slices.Concat(Folders, []string{Packages, "/usr/share/matplotlib", "/usr/share/fonts"})

// DataPacked lists the compressed files: the packages and their data, large libraries that few programs load, and
// sources, which only tracebacks show. Files that Python reads at its start are not compressed.
var DataPacked = []string{Packages, "/usr/share/matplotlib/", "/usr/share/fonts/", "/usr/lib/TRIPLET/lapack/",
	"/usr/lib/TRIPLET/libg", "/usr/lib/TRIPLET/libicu", "/usr/lib/TRIPLET/libx", "*.py"}

// DataLinks are the links that Debian's alternatives would create.
var DataLinks = map[string]string{"/usr/lib/TRIPLET/libblas.so.3": "blas/libblas.so.3",
	"/usr/lib/TRIPLET/liblapack.so.3": "lapack/liblapack.so.3"}

// warm is a program that runs once in a machine that becomes a template: the modules that it imports, in place of
// IMPORTS, stay loaded. Its function renew is called whenever a run begins in such a machine.
//
//go:embed warm.py
var warm string

//go:embed warm_data.py
var warmData string

// WarmFiles returns the program that imports modules, and those of the image data if data is set. It returns nil
// if there is nothing to import.
func WarmFiles(data bool, modules []string) map[string]string {
	var imports strings.Builder
	if data {
		imports.WriteString(warmData)
	}
	for _, name := range modules {
		fmt.Fprintf(&imports, "import %s\n", name)
	}
	if imports.Len() == 0 {
		return nil
	}
	return map[string]string{contract.Warm: strings.Replace(warm, "IMPORTS\n", imports.String(), 1)}
}

//go:embed figures.py
var figures string

// DataFiles returns the texts of the image, by their path in the guest.
func DataFiles() map[string]string {
	files := Files()
	maps.Copy(files, WarmFiles(true, nil))
	files[Packages+"/unitask_figures.py"] = figures
	files["/etc/matplotlibrc"] = "# plt.show(), and figures that nobody has saved, go to /out.\nbackend: " +
		"module://unitask_figures\n"
	return files
}

//go:embed data.py
var tables string

// DataRehearsal is the throw-away program: Python's own, extended with a table.
var DataRehearsal = Rehearsal + "import numpy\nimport pandas\n" + tables

// DataPatience bounds the imports of a template on an emulated machine.
const DataPatience = 3 * time.Minute
