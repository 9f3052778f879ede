#define PRODUCT 2
#include "variants.inc"
