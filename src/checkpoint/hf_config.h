/* hf_config.h - config.json of a Hugging Face GPT-2 or Llama directory. */
#ifndef RRFP_HF_CONFIG_H
#define RRFP_HF_CONFIG_H

#include "model/model.h"

/* Writes PATH atomically. */
rrfp_status rrfp_hf_config_write(const char *path, const rrfp_model_config *model,
                                 rrfp_error *error);
/* Reads dimensions and architecture; what the model here cannot do is refused by its key. */
rrfp_status rrfp_hf_config_read(const char *path, rrfp_model_config *model, rrfp_error *error);

#endif /* RRFP_HF_CONFIG_H */
