package debian

// OfFolder is OfHost with apt's configuration in another folder.
var OfFolder = ofFolder
