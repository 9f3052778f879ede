#define PRODUCT 3
#include "variants.inc"
