#define PRODUCT 1
#include "variants.inc"
