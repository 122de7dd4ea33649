/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_NVML_PCI_H
#define FAKE_NVML_PCI_H

#include "machine.h"

void pci_fill(nvmlPciInfo_t *info, const struct pci_address *pci, unsigned int device_id);

#endif
