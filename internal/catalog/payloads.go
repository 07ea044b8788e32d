package catalog

import "github.com/unitask/unitask/image"

// CustomPayloads returns the function that finds the payloads of a home's custom images (image.Store.Custom).
func CustomPayloads(home string) func(name string) (image.Payload, error) {
	return func(name string) (image.Payload, error) {
		o, err := ReadCustom(home, name)
		if err != nil {
			return image.Payload{}, err
		}
		return o.Row.Payload, nil
	}
}

// ShippedPayload returns the payload of a custom image that another host shipped (image.Store.Along).
func ShippedPayload(c *image.Container) (image.Payload, error) {
	o, err := ShippedCustom(c)
	if err != nil {
		return image.Payload{}, err
	}
	return o.Row.Payload, nil
}
